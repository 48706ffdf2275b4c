"""Calls by their sizes and options: operands, and expected results."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.grouped_mm.bounds import packed_tolerance, tolerance
from gemmill.families.grouped_mm.ops import GROUPED_MM, GROUPED_MM_MASKED
from gemmill.families.grouped_mm.packed_ops import FP4_NAMES, GROUPED_FP4_MM, GROUPED_FP4_MM_MASKED
from gemmill.families.grouped_mm.reference import exact_mm, packed_exact_mm, segment_mm
from gemmill.families.grouped_mm.serving import packed_parts_of, parts_of
from gemmill.family import Judged
from gemmill.formats.quantise import BlockScaled
from gemmill.numerics.comparison import Wanted
from gemmill.quantize.experts import prepack_experts
from gemmill.runtime import checks
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType, Format, ScaleGroups


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    counts: tuple[int, ...]
    """Rows of each expert."""
    n: int
    k: int
    dtype: DType = DType.E4M3
    out_dtype: DType = DType.BF16
    groups: ScaleGroups | None = None
    """The kind of scales in groups along K; None for scales of rows and channels."""
    slot: int = 0
    """Rows of room for each expert; 0 where segments follow one another."""
    spare: int = 0
    """Rows without an expert, before the first segment and behind the last."""
    mapped: tuple[int, ...] | None = None
    """Which weights each expert has; None where each has its own."""
    one_value: bool = False
    """Whether scales are one value for A, and one for each expert."""
    wide_offsets: bool = False
    """Whether offsets have 64 bits."""
    promoted: bool = False
    """Whether the bound assumes that sums leave the tensor core every 128 along K."""
    data: str = "random"
    """Kind of data: "random" or "integers". "integers" are small, with powers of two as scales: every order of summation gives
    the same."""
    pad: int = 0
    """Elements between rows of a and of out."""
    indexed: bool = False
    """Whether the op gathers rows of a: a has fewer rows than out, and some numbers are of no row."""
    format: Format | None = None
    """Format of packed weights; then `dtype` is that of A."""
    alpha: bool = False
    """Whether each expert's weights have an alpha."""
    bias: bool = False
    """Whether they have a bias of each column."""

    @property
    def op(self) -> str:
        """The op's name."""
        if self.format is not None:
            return (GROUPED_FP4_MM_MASKED if self.slot else GROUPED_FP4_MM).name
        return (GROUPED_MM_MASKED if self.slot else GROUPED_MM).name

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return len(self.counts) * self.slot if self.slot else sum(self.counts) + 2 * self.spare

    @property
    def tokens(self) -> int:
        """Rows of A."""
        return self.rows // 2 + 3 if self.indexed else self.rows

    @property
    def weights(self) -> int:
        """Experts that have weights."""
        return len(self.counts) if self.mapped is None else max(self.mapped) + 1

    @property
    def is_plain(self) -> bool:
        """Whether operands have no scales."""
        return self.dtype.bits == 16

    def __str__(self) -> str:
        words = [f"rows {self.counts}, N, K = {self.n}, {self.k}", f"{self.dtype} to {self.out_dtype}"]
        words += [f"weights of {self.format}"] if self.format is not None else []
        words += [" and ".join(ends)] if (ends := ["alpha"] * self.alpha + ["bias"] * self.bias) else []
        words += [f"groups of {self.groups.size}, weights of {self.groups.of_b}"] if self.groups is not None else []
        words += [f"slots of {self.slot}"] if self.slot else []
        words += [f"map {self.mapped}"] if self.mapped is not None else []
        words += ["gathered"] if self.indexed else []
        words += ["exact"] if self.data == "integers" else []
        return "; ".join(words)


def make_given(p: CallSpec, device: torch.device) -> dict[str, Any]:
    """Arguments by name, without the result; the same spec has the same data."""
    g = torch.Generator(device=device).manual_seed(p.rows * 1_000_003 + p.n * 1009 + p.k)
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a = torch.full((p.tokens, p.k + p.pad), 1, dtype=torch.int8, device=device).to(_torch(p.dtype))[:, : p.k]
    a.copy_(_codes((p.tokens, p.k), p, g))
    if p.groups is not None:
        a_shape, b_shape = p.groups.a_shape(p.tokens, p.k), (p.weights, *p.groups.b_shape(p.n, p.k)[::-1])
    else:
        a_shape, b_shape = ((1,), (p.weights,)) if p.one_value else ((p.tokens, 1), (p.weights, p.n))
    begins = torch.tensor((p.spare, *p.counts), device=device, dtype=torch.int64).cumsum(0)
    told = torch.tensor(p.counts, device=device, dtype=torch.int64) if p.slot else begins
    given: dict[str, Any] = {
        "a": a,
        "b": None if p.format is not None else _codes((p.weights, p.n, p.k), p, g),
        "a_scales": None if p.is_plain else _scales(a_shape, p, g),
        "b_scales": None if p.is_plain else _scales(b_shape, p, g),
        "rows" if p.slot else "expert_offsets": told.to(torch.int64 if p.wide_offsets else torch.int32),
        "expert_map": None if p.mapped is None else torch.tensor(p.mapped, dtype=torch.int32, device=device),
        "expected_rows": 0,
        "token_ids": _ids(p, g) if p.indexed else None,
        "alpha": _alpha(p, g) if p.alpha else None,
        "bias": _bias(p, g) if p.bias else None,
    }
    if p.format is not None:
        given |= _packed(p, p.format, g)
    if p.slot:
        given["a"] = a.unflatten(0, (len(p.counts), p.slot))
        if not p.one_value and not p.is_plain:
            given["a_scales"] = given["a_scales"].unflatten(0, (len(p.counts), p.slot))
    return given


def arguments_of(op: str, given: dict[str, Any], out: Tensor) -> list[Any]:
    """The arguments of an op in the order of its schema."""
    return [(given | {"out": out})[name] for name in BY_NAME[op].arguments]


def wanted_of(op: str, given: dict[str, Any], out: Tensor, *, exactly: bool, promoted: bool) -> Wanted:
    """The expected results of a call, [M, N]. `out` has its contents before the call: rows of no expert stay as they
    are.
    """
    schema = BY_NAME[op]
    values = arguments_of(op, given, out)
    call = checks.check(schema, of_arguments(schema, values))
    before = out.clone(memory_format=torch.contiguous_format)
    rounded, exact, bound = (
        before.clone(),
        before.double(),
        torch.zeros(out.shape, dtype=torch.float64, device=out.device),
    )
    by_role = dict(zip(call.roles, values, strict=False))
    if op in FP4_NAMES:
        _want_packed(call, by_role, (rounded, exact, bound), exactly)
        return _wanted((rounded, exact, bound), exactly)
    targets = [list(parts_of(call, by_role | {"out": tensor})) for tensor in (rounded, exact, bound)]
    for part, of_exact, of_bound in zip(*targets, strict=True):
        operands, ends = (part.a, part.b, part.a_scales, part.b_scales), (part.alpha, part.bias)
        part.out.copy_(segment_mm(*operands, out.dtype, *ends))
        if not exactly:
            of_exact.out.copy_(exact_mm(*operands, *ends))
            of_bound.out.copy_(tolerance(*operands, out.dtype, *ends, promoted=promoted))
    return _wanted((rounded, exact, bound), exactly)


def _wanted(results: tuple[Tensor, Tensor, Tensor], exactly: bool) -> Wanted:
    """The expected values, from rounded results, exact results, and a bound of the error."""
    rounded, exact, bound = (x.reshape(-1, x.shape[-1]) for x in results)
    return Wanted(rounded=rounded) if exactly else Wanted(rounded=rounded, exact=exact, bound=bound)


def _want_packed(call: Judged, given: dict[str, Any], results: tuple[Tensor, Tensor, Tensor], exactly: bool) -> None:
    """Write the expected values of a call with packed weights into the results."""
    targets = [list(packed_parts_of(call, given | {"out": tensor})) for tensor in results]
    for part, of_exact, of_bound in zip(*targets, strict=True):
        operands = part.a, part.b, part.bias
        exact = packed_exact_mm(*operands)
        part.out.copy_(exact.float())
        if not exactly:
            of_exact.out.copy_(exact)
            of_bound.out.copy_(packed_tolerance(*operands, part.out.dtype, folded=bool(call["scaled"])))


def _packed(p: CallSpec, format: Format, g: torch.Generator) -> dict[str, Any]:
    """Packed weights with their bases. Every code is a multiple of a half."""
    experts = [_block_scaled(p, format, g) for _ in range(p.weights)]
    packed = prepack_experts(experts, activations="e4m3" if p.dtype is DType.E4M3 else "bf16")
    return {"b": packed.blocks, "b_scales": packed.base, "format": str(format)}


def _alpha(p: CallSpec, g: torch.Generator) -> Tensor:
    """Powers of two with integers, else numbers near 1."""
    return _scales((p.weights,), p, g) * (1 if p.data == "integers" else 80)


def _bias(p: CallSpec, g: torch.Generator) -> Tensor:
    """Small whole numbers, of the result's dtype."""
    return torch.randint(-4, 5, (p.weights, p.n), device=g.device, generator=g, dtype=torch.int64).to(
        _torch(p.out_dtype)
    )


def _block_scaled(p: CallSpec, format: Format, g: torch.Generator) -> BlockScaled:
    """Weights of any codes, with scales near 1; for integers scales are powers of two."""
    codes = torch.randint(0, 256, (p.n, format.code_bytes(p.k)), device=g.device, generator=g, dtype=torch.int64)
    shape, one, step = (p.n, format.scale_count(p.k)), *((56, 8) if format.has_global_scale else (127, 1))
    if p.data == "integers":
        scales = one + step * torch.randint(-1, 2, shape, device=g.device, generator=g, dtype=torch.int64)
    else:
        scales = torch.randint(one - 3 * step, one + 2 * step, shape, device=g.device, generator=g, dtype=torch.int64)
    return BlockScaled(format=format, codes=codes.to(torch.uint8), scales=scales.to(torch.uint8))


def _ids(p: CallSpec, g: torch.Generator) -> Tensor:
    """Numbers of the rows to gather: of any row, and one in eight of none."""
    ids = torch.randint(0, p.tokens, (p.rows,), device=g.device, generator=g, dtype=torch.int64)
    ids[3::8], ids[7::16] = p.tokens, -1
    return ids.to(torch.int64 if p.wide_offsets else torch.int32)


def _torch(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch_name)
    return found


def _codes(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return torch.randint(-2, 3, shape, device=g.device, generator=g, dtype=torch.int64).float().to(_torch(p.dtype))
    if p.dtype is DType.S8:
        return torch.randint(-128, 128, shape, device=g.device, generator=g, dtype=torch.int64).to(torch.int8)
    return torch.randn(shape, device=g.device, generator=g, dtype=torch.float32).to(_torch(p.dtype))


def _scales(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return torch.exp2(torch.randint(-2, 3, shape, device=g.device, generator=g, dtype=torch.int64).float())
    return torch.rand(shape, device=g.device, generator=g, dtype=torch.float32) * 0.02 + 0.005
