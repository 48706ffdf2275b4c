"""Numerics of a build's variants against the reference, on real tensors."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product

import torch
from torch import Tensor

from gemmill.families import scaled_mm
from gemmill.families.quant.config import QuantConfig
from gemmill.families.quant.selections import smoke as smoke_quant_configs
from gemmill.families.scaled_mm.accepts import Predicate
from gemmill.families.scaled_mm.ops import SCALED_MM, SCALED_MM_AZP
from gemmill.manifest import KernelEntry
from gemmill.reference import Comparison, check_scaled_mm, powers_of_two, small_bias, small_integers
from gemmill.runtime.library import Build
from gemmill.runtime.ops import load, use_variant
from gemmill.runtime.schemas import NAMESPACE
from gemmill.tune import quant_cases
from gemmill.tune.quant_cases import QuantCase, ops_served
from gemmill.vocab import SCALE_GROUPS, Accumulation, Arch, DType, ScaleGranularity, ScaleGroups, ScaleLayout

SHAPES = ((1, 16, 16), (3, 48, 144), (16, 256, 512), (65, 144, 272), (130, 272, 1040), (257, 520, 2080))
"""(M, N, K) before rounding N and K up to what a variant's alignment asks: below, at and across tile edges."""
LONG_SHAPES = ((33, 136, 4096), (17, 264, 14336), (9, 72, 32768))
"""For exact operands: so long a K that the bound on sums of random ones hides what is missing."""
UNALIGNED_SHAPES = ((1, 1, 1), (5, 3, 7), (67, 129, 131), (130, 257, 1031))
CASES_OF_A_SHAPE = 3
"""Enough for the six shapes to go through all kinds of scales, biases and zero points: at most sixteen."""
QUICK_SHAPE = (33, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: a shape, which scales are vectors, and which optional operands are given."""

    m: int
    n: int
    k: int
    a_vector: bool
    """a scale for each row instead of one; in groups, scales row-major instead of column-major"""
    b_vector: bool
    bias: bool
    azp: str
    """none, row or token, as in Predicate."""
    groups: ScaleGroups | None = None
    exact: bool = False
    """of small integers and powers of two: the result must be the same to the last bit"""

    def __str__(self) -> str:
        return f"{self._words()}; exact" if self.exact else self._words()

    def _words(self) -> str:
        if self.groups is not None:
            a_order, b_order = ("row" if vector else "column" for vector in (self.a_vector, self.b_vector))
            of_b = self.groups.size if self.groups.b_scale is ScaleGranularity.BLOCK else 1
            scales = (
                f"a_scales 1 x {self.groups.size} {a_order}-major, b_scales {self.groups.size} x {of_b} {b_order}-major"
            )
            return f"M, N, K = {self.m}, {self.n}, {self.k}; {scales}; bias {'yes' if self.bias else 'no'}"
        scales = f"a_scales {'[M, 1]' if self.a_vector else '[1]'}, b_scales {'[1, N]' if self.b_vector else '[1]'}"
        return f"M, N, K = {self.m}, {self.n}, {self.k}; {scales}; bias {'yes' if self.bias else 'no'}; azp {self.azp}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of all cases of one variant, or of one op."""

    name: str
    cases: int
    failures: tuple[str, ...]
    """A sentence for each case that failed."""
    worst_fraction: float
    """Largest error as a fraction of its tolerance; 0 where results must be equal to the last bit."""


def verify_variants(build: Build, names: frozenset[str] | None = None) -> Iterator[Verdict]:
    """Every variant of a loaded build that this GPU runs (those in `names`, if given), each pinned, on the current GPU."""
    major, minor = torch.cuda.get_device_capability()
    for entry in build.manifest.entries:
        if entry.config.arch.capability == (major, minor) and (names is None or entry.name in names):
            yield _verify_variant(entry) if entry.family == scaled_mm.NAME else _verify_quant(entry)


def verify_ops() -> Iterator[Verdict]:
    """Each op once for each operand type: on the current GPU with the variant that selection gives, else the CPU reference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        load()
    m, n, k = QUICK_SHAPE
    for op, dtype, azp in (
        (SCALED_MM, DType.E4M3, "none"),
        (SCALED_MM, DType.S8, "none"),
        (SCALED_MM, DType.BF16, "none"),
        (SCALED_MM_AZP, DType.S8, "token"),
    ):
        case = Case(m=m, n=n, k=k, a_vector=True, b_vector=True, bias=True, azp=azp)
        accumulation = Accumulation.FAST if dtype.is_float else Accumulation.EXACT
        comparison = run_case(case, dtype, DType.BF16, accumulation, device)
        yield _verdict(f"{op.name} {dtype}", [(case, comparison)])
    groups = SCALE_GROUPS[0]
    case = Case(m=m, n=n, k=k + groups.size, a_vector=False, b_vector=False, bias=True, azp="none", groups=groups)
    comparison = run_case(case, DType.E4M3, DType.BF16, Accumulation.PROMOTED, device)
    yield _verdict(f"{SCALED_MM.name} {DType.E4M3} in groups", [(case, comparison)])
    yield from verify_quant_ops(device)


def verify_quant_ops(device: str) -> Iterator[Verdict]:
    """Each quantisation op that the smoke selection has a variant for, once."""
    for config in smoke_quant_configs(Arch.SM90A):
        for op in ops_served(config):
            yield _quant_verdict(op, config, [op], list(quant_cases.cases_of(config, quick=True)), device)


def _verify_quant(entry: KernelEntry) -> Verdict:
    cases = list(quant_cases.cases_of(entry.config))
    with use_variant(entry.name):
        return _quant_verdict(entry.name, entry.config, ops_served(entry.config), cases, "cuda")


def _quant_verdict(name: str, config: QuantConfig, ops: list[str], cases: list[QuantCase], device: str) -> Verdict:
    failures = []
    for op, case in product(ops, cases):
        try:
            text = quant_cases.check_case(config, op, case, device)
        except RuntimeError as error:
            text = str(error).splitlines()[0]
        if text:
            failures.append(f"{op} {case}: {text}")
    return Verdict(name=name, cases=len(ops) * len(cases), failures=tuple(failures), worst_fraction=0.0)


def device_words() -> str:
    """Where the cases run, in words."""
    if torch.cuda.is_available():
        return f"on {torch.cuda.get_device_name()}"
    return "with the CPU reference: there is no GPU that torch can use, so no kernel was run"


def cases_of(predicate: Predicate) -> Iterator[Case]:
    """Shapes that the variant takes, over all kinds of scales and optional operands."""
    both = (True, False)
    a_vectors = (False,) if predicate.scale_layout is ScaleLayout.MN_MAJOR else both
    kinds = cycle(product(a_vectors, both, both if predicate.bias else (False,), predicate.azp))
    align_n, align_k = predicate.alignment_d, max(predicate.alignment_a, predicate.alignment_b)
    shapes = UNALIGNED_SHAPES + SHAPES if align_n == align_k == 1 else SHAPES
    for m, shape_n, shape_k in shapes + LONG_SHAPES:
        n, k = -(-shape_n // align_n) * align_n, -(-shape_k // align_k) * align_k
        k = _more_than_one_group(k, predicate.group_size)
        exact = (m, shape_n, shape_k) in LONG_SHAPES
        for a_vector, b_vector, bias, azp in islice(kinds, 1 if exact else CASES_OF_A_SHAPE):
            yield Case(
                m=m,
                n=n,
                k=k,
                a_vector=a_vector,
                b_vector=b_vector,
                bias=bias,
                azp=azp,
                groups=predicate.scale_groups,
                exact=exact,
            )


def _more_than_one_group(k: int, group_size: int) -> int:
    """One group alone is a scale for each row, which is another class of calls."""
    return k + group_size if k <= group_size else k


def run_case(case: Case, operand: DType, out_dtype: DType, accumulation: Accumulation, device: str) -> Comparison:
    """Call the op on fresh operands, its output poisoned, and hold the result against the reference."""
    generator = torch.Generator(device).manual_seed(case.m * 1_000_003 + case.n * 1009 + case.k)
    a = _codes((case.m, case.k), operand, generator, case.exact)
    b = _codes((case.n, case.k), operand, generator, case.exact).t()
    a_scales, b_scales = _scales_of(case, generator)
    dtype = getattr(torch, out_dtype.torch_name)
    out = torch.full((case.m, case.n), torch.nan, dtype=dtype, device=device)
    bias = _bias(case, dtype, generator) if case.bias else None
    azp_adj = azp = None
    ops = getattr(torch.ops, NAMESPACE)
    if case.azp == "none":
        ops.cutlass_scaled_mm.default(out, a, b, a_scales, b_scales, bias)
    else:
        zero_points = torch.randint(-128, 128, (case.m,), generator=generator, device=device, dtype=torch.int32)
        sums = b.to(torch.int32).sum(0, dtype=torch.int32)
        azp_adj, azp = (sums, zero_points) if case.azp == "token" else (sums * zero_points[0], None)
        ops.cutlass_scaled_mm_azp.default(out, a, b, a_scales, b_scales, azp_adj, azp, bias)
    return check_scaled_mm(out, a, b, a_scales, b_scales, accumulation, bias, azp_adj, azp, exact_data=case.exact)


def _verify_variant(entry: KernelEntry) -> Verdict:
    results: list[tuple[Case, Comparison | str]] = []
    p = entry.predicate
    for case in cases_of(p):
        try:
            with use_variant(entry.name):
                results.append(
                    (case, run_case(case, p.a_dtype, p.out_dtype, entry.config.schedule.accumulation, "cuda"))
                )
        except RuntimeError as error:
            results.append((case, str(error).splitlines()[0]))
    return _verdict(entry.name, results)


def _verdict(name: str, results: list[tuple[Case, Comparison]] | list[tuple[Case, Comparison | str]]) -> Verdict:
    failures, worst = [], 0.0
    for case, result in results:
        if isinstance(result, str):
            failures.append(f"{case}: {result}")
            continue
        worst = max(worst, result.worst_fraction)
        if not result.ok:
            failures.append(f"{case}: {result.report}")
    return Verdict(name=name, cases=len(results), failures=tuple(failures), worst_fraction=worst)


def _codes(shape: tuple[int, int], dtype: DType, generator: torch.Generator, exact: bool) -> Tensor:
    if exact:
        return small_integers(*shape, getattr(torch, dtype.torch_name), generator)
    if dtype is DType.S8:
        return torch.randint(-128, 128, shape, generator=generator, device=generator.device, dtype=torch.int8)
    return torch.randn(shape, generator=generator, device=generator.device).to(getattr(torch, dtype.torch_name))


def _bias(case: Case, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if case.exact:
        return small_bias(case.n, dtype, generator)
    return torch.randn(case.n, generator=generator, device=generator.device).to(dtype)


def _scales_of(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    def draw(shape: tuple[int, ...]) -> Tensor:
        if case.exact:
            return powers_of_two(shape, generator)
        return torch.rand(shape, generator=generator, device=generator.device) * 0.1 + 0.01

    def draw_groups(shape: tuple[int, int], row_major: bool) -> Tensor:
        rows, columns = shape
        return (
            draw(shape) if row_major else draw((columns, rows + -rows % 4)).t()[:rows]
        )  # columns at multiples of 16 bytes

    if case.groups is None:
        return draw((case.m, 1) if case.a_vector else (1,)), draw((1, case.n) if case.b_vector else (1,))
    return (
        draw_groups(case.groups.a_shape(case.m, case.k), case.a_vector),
        draw_groups(case.groups.b_shape(case.n, case.k), case.b_vector),
    )
