"""The calls that verify a GEMM variant."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

import torch
from torch import Tensor

from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP, Predicate, accepted
from gemmill.families.scaled_mm.cases import own
from gemmill.families.scaled_mm.cases.calls import CallSpec, compare, make_call
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.numerics.cases import CaseOutcome, SpecCase
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import SCALE_GROUPS, Accumulation, DType, ScaleGranularity, ScaleLayout

SHAPES = ((1, 16, 16), (3, 48, 144), (16, 256, 512), (65, 144, 272), (130, 272, 1040), (257, 520, 2080))
"""(M, N, K) below, at and across tile edges. N and K then round up to the variant's alignment."""
LONG_SHAPES = ((33, 136, 4096), (17, 264, 14336), (9, 72, 32768))
"""(M, N, K) for exact operands. For so long a K the bound on sums of random operands hides missing products."""
UNALIGNED_SHAPES = ((1, 1, 1), (5, 3, 7), (67, 129, 131), (130, 257, 1031))
CASES_OF_A_SHAPE = 3
"""Cases of each shape: enough for six shapes to go through all kinds of scales, biases and zero points, at most
sixteen."""
QUICK_SHAPE = (33, 64, 128)


@dataclass(frozen=True, kw_only=True)
class GemmCase(SpecCase):
    """A call spec, and how the kernel that answers it adds."""

    spec: CallSpec
    accumulation: Accumulation

    def arguments(self, device: str) -> Sequence[Tensor | None]:
        """Arguments in the order of the op's schema."""
        return make_call(self.spec, torch.device(device)).arguments

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference."""
        call = make_call(self.spec, torch.device(device))
        getattr(getattr(torch.ops, NAMESPACE), self.spec.op).default(*call.arguments)
        comparison = compare(call, self.accumulation)
        report = comparison.report
        if comparison.ok and not call.guards_hold():
            report = "elements outside the result were written"
        return CaseOutcome(report=report, worst_fraction=comparison.worst_fraction)


def of_config(config: KernelConfig) -> Iterator[GemmCase | own.OwnCase]:
    """The cases of the shapes that a variant takes, over all kinds of scales and optional operands."""
    if isinstance(config, OwnConfig):
        yield from own.of_config(config)
        return
    for spec in specs_of(accepted(config)):
        yield GemmCase(spec=spec, accumulation=config.design.accumulation)


def sized(config: KernelConfig, sizes: Mapping[str, int]) -> GemmCase | own.OwnCase:
    """The first spec of a variant's cases at M, N and K, with exact operands."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    if isinstance(config, OwnConfig):
        return own.sized(config, m, n, k)
    kind = next(specs_of(accepted(config)))
    return GemmCase(spec=replace(kind, m=m, n=n, k=k, data="integers"), accumulation=config.design.accumulation)


def specs_of(predicate: Predicate) -> Iterator[CallSpec]:
    """The specs of a variant's cases."""
    both = ("each", "one")
    a_scales = ("one",) if predicate.scale_layout is ScaleLayout.MN_MAJOR else both
    kinds = cycle(product(a_scales, both, (True, False) if predicate.bias else (False,), predicate.azp))
    align_n, align_k = predicate.alignment_d, max(predicate.alignment_a, predicate.alignment_b)
    shapes = UNALIGNED_SHAPES + SHAPES if align_n == align_k == 1 else SHAPES
    groups = predicate.scale_groups
    # A single column's scales have the shape of a block's, and a single group's that of a scale for each row: other classes.
    least_n = 2 if groups and groups.b_scale is not ScaleGranularity.BLOCK else 1
    for m, shape_n, shape_k in shapes + LONG_SHAPES:
        n, k = -(-shape_n // align_n) * align_n, -(-shape_k // align_k) * align_k
        is_long = (m, shape_n, shape_k) in LONG_SHAPES
        for a_scale, b_scale, bias, azp in islice(kinds, 1 if is_long else CASES_OF_A_SHAPE):
            yield CallSpec(
                m=m,
                n=max(n, least_n),
                k=k + predicate.group_size if k <= predicate.group_size else k,
                a_dtype=predicate.a_dtype,
                out_dtype=predicate.out_dtype,
                a_scale=a_scale,
                b_scale=b_scale,
                bias=bias,
                azp=azp,
                groups=groups,
                data="integers" if is_long else "random",
            )


def once() -> Iterator[tuple[str, GemmCase | own.OwnCase]]:
    """Each op once for each operand type, and with scales in groups."""
    m, n, k = QUICK_SHAPE
    for op, dtype, azp in (
        (SCALED_MM, DType.E4M3, "none"),
        (SCALED_MM, DType.S8, "none"),
        (SCALED_MM, DType.BF16, "none"),
        (SCALED_MM_AZP, DType.S8, "token"),
    ):
        accumulation = Accumulation.FAST if dtype.is_float else Accumulation.EXACT
        spec = CallSpec(m=m, n=n, k=k, a_dtype=dtype, azp=azp, bias=True)
        yield f"{op} {dtype}", GemmCase(spec=spec, accumulation=accumulation)
    groups = SCALE_GROUPS[0]
    spec = CallSpec(m=m, n=n, k=k + groups.size, a_scale="one", b_scale="one", bias=True, groups=groups)
    yield f"{SCALED_MM} {spec.a_dtype} in groups", GemmCase(spec=spec, accumulation=Accumulation.PROMOTED)
    yield from own.once(m, n, k)
