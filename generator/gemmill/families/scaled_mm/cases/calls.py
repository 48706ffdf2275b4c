"""Calls of the GEMM ops by their sizes and options: operands, guard bands around the result, and its expected value."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP
from gemmill.families.scaled_mm.bounds import accumulation_error, exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.numerics.comparison import Comparison, Wanted
from gemmill.numerics.exact import powers_of_two, small_integers
from gemmill.numerics.memory import GUARD_BYTES, POISON, Memory, Slot
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Accumulation, DType, ScaleGranularity, ScaleGroups

GUARD_ROWS = 2
"""Rows before the result that nothing may write, and as many after it."""
PADDING = 16
"""Elements by which padded rows are longer: rows of 8-bit and of 16-bit elements stay 16-byte aligned."""


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    m: int
    n: int
    k: int
    a_dtype: DType = DType.E4M3
    out_dtype: DType = DType.BF16
    azp: str = "none"
    """"none" calls cutlass_scaled_mm; "row" and "token" call cutlass_scaled_mm_azp"""
    groups: ScaleGroups | None = None
    """The groups of scales; None where they are per tensor or channel."""
    a_scale: str = "each"
    """How scales of A come: "each" is a scale for each row, "one" is one for all, "unit" is 1 for all.

    In groups, "each" is row-major, and "one" and "together" are column-major. With "one", gaps pad columns to 16 bytes
    in the "tight" and "padded" layouts. With "together" there are no gaps.
    """
    b_scale: str = "each"
    bias: bool = False
    data: str = "random"
    """The distribution of values: "random" is normal, "uniform" is in [-1, 1], "integers" are small.

    With "integers" scales are powers of two, so that every order of summation gives the same. All other s8 codes are of
    the whole range.
    """
    layout: str = "tight"
    """How matrices lie: "tight", "padded", "odd" or "shifted".

    "padded" rows are 16-byte aligned, and longer than they must be. "odd" rows have an odd length. "shifted" data
    starts one element after an aligned address.
    """

    @property
    def op(self) -> str:
        """The op of the call."""
        return SCALED_MM if self.azp == "none" else SCALED_MM_AZP

    def __str__(self) -> str:
        words = [f"M, N, K = {self.m}, {self.n}, {self.k}", self._scales_in_words()]
        words.append(f"bias {'yes' if self.bias else 'no'}")
        words += [] if self.groups else [f"azp {self.azp}"]
        words += ["exact"] if self.data == "integers" else []
        return "; ".join(words + ([] if self.layout == "tight" else [self.layout]))

    def _scales_in_words(self) -> str:
        each = self.a_scale == "each", self.b_scale == "each"
        if self.groups is None:
            return f"a_scales {'[M, 1]' if each[0] else '[1]'}, b_scales {'[1, N]' if each[1] else '[1]'}"
        size, (a_order, b_order) = self.groups.size, ("row" if rows else "column" for rows in each)
        of_b = size if self.groups.b_scale is ScaleGranularity.BLOCK else 1
        return f"a_scales 1 x {size} {a_order}-major, b_scales {size} x {of_b} {b_order}-major"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A spec's tensors. `out` lies in a memory of its own, poisoned throughout."""

    spec: CallSpec
    memory: Memory
    out: Tensor
    a: Tensor
    b: Tensor
    a_scales: Tensor
    b_scales: Tensor
    bias: Tensor | None
    azp_adj: Tensor | None
    azp: Tensor | None

    @property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """Arguments in the order of the op's schema."""
        return tuple(getattr(self, name) for name in BY_NAME[self.spec.op].arguments)

    def poison(self) -> None:
        """Fill the result and its surroundings with NaN."""
        self.memory.bytes.fill_(POISON)

    def untouched(self) -> bool:
        """Whether nothing at all was written."""
        return bool((self.memory.bytes == POISON).all())

    def guards_hold(self) -> bool:
        """Whether nothing was written outside the result."""
        return not self.memory.changed(torch.full_like(self.memory.bytes, POISON), written=True).any()


def make_call(spec: CallSpec, device: torch.device) -> Call:
    """New tensors for a spec; the same spec has the same data."""
    p = spec
    generator = torch.Generator(device=device).manual_seed(p.m * 1_000_003 + p.n * 1009 + p.k)
    out_type = getattr(torch, p.out_dtype.torch_name)
    a = _laid_out(make_data(p, p.m, p.k, generator), p.layout)
    b = _laid_out(make_data(p, p.n, p.k, generator), p.layout).t()
    strides, shift = (p.n + _padding(p.layout, p.n), 1), int(p.layout == "shifted")
    slot = Slot.matrix(out_type, (p.m, p.n), strides, values=None, written=True, shift=shift)
    memory = Memory({"out": slot}, device, GUARD_BYTES + GUARD_ROWS * slot.row_stride * slot.dtype.itemsize)
    azp_adj, azp = make_zero_points(p, b, generator)
    bias = None
    if p.bias:
        bias = torch.randn(p.n, device=device, generator=generator, dtype=torch.float32).mul(8).round().to(out_type)
    a_scales, b_scales = make_scales(p, generator)
    return Call(
        spec=p,
        memory=memory,
        out=memory.tensor("out"),
        a=a,
        b=b,
        a_scales=a_scales,
        b_scales=b_scales,
        bias=bias,
        azp_adj=azp_adj,
        azp=azp,
    )


def make_zero_points(p: CallSpec, b: Tensor, generator: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
    """azp_adj and azp for b [K, N]; None where the spec has none."""
    if p.azp == "none":
        return None, None
    azp_adj = b.sum(dim=0, dtype=torch.int32)
    if p.azp == "row":
        return azp_adj * 3, None
    return azp_adj, torch.randint(-128, 128, (p.m, 1), dtype=torch.int32, device=generator.device, generator=generator)


def make_scales(p: CallSpec, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The scales of a and of b."""
    if p.groups is None:
        a_scales, b_scales = (
            _scales(p, kind, count, generator) for kind, count in ((p.a_scale, p.m), (p.b_scale, p.n))
        )
        return a_scales.reshape(-1, 1), b_scales.reshape(1, -1)
    return (
        _group_scales(p, p.a_scale, p.groups.a_shape(p.m, p.k), generator),
        _group_scales(p, p.b_scale, p.groups.b_shape(p.n, p.k), generator),
    )


def make_data(p: CallSpec, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """The data of a, or of b transposed, row-major without gaps."""
    kind, device = getattr(torch, p.a_dtype.torch_name), generator.device
    if p.data == "integers":
        return small_integers(rows, columns, kind, generator)
    if p.a_dtype is DType.S8:
        return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, device=device, generator=generator)
    if p.data == "uniform":
        return (
            torch.rand(rows, columns, device=device, generator=generator, dtype=torch.float32).mul_(2).sub_(1).to(kind)
        )
    return torch.randn(rows, columns, device=device, generator=generator, dtype=torch.float32).to(kind)


def _group_scales(p: CallSpec, order: str, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    values = _scale_values(p, shape[0] * shape[1], generator).reshape(shape)
    if order == "each":
        return values
    if order == "together":
        return values.reshape(shape[::-1]).t()
    rows, columns = shape
    stride = rows + (-rows % 4 if p.layout in ("tight", "padded") else 1)
    memory = torch.full(
        (columns, stride), torch.nan, device=values.device, dtype=torch.float32
    )  # padding that no kernel may read
    memory[:, :rows] = values.t()
    return memory.t()[:rows]


def _scales(p: CallSpec, kind: str, count: int, generator: torch.Generator) -> Tensor:
    if kind == "unit":
        return torch.ones(1, device=generator.device, dtype=torch.float32)
    return _scale_values(p, 1 if kind == "one" else count, generator)


def _scale_values(p: CallSpec, count: int, generator: torch.Generator) -> Tensor:
    if p.data == "integers":
        return powers_of_two((count,), generator)
    return torch.rand(count, device=generator.device, generator=generator, dtype=torch.float32) * 0.02 + 0.005


def _laid_out(matrix: Tensor, layout: str) -> Tensor:
    """The same matrix, row-major, in memory as `layout` says."""
    rows, columns = matrix.shape
    stride, offset = columns + _padding(layout, columns), 1 if layout == "shifted" else 0
    bits = torch.uint8 if matrix.element_size() == 1 else torch.int16  # not every torch can copy FP8 with strides
    memory = torch.zeros(offset + rows * stride, dtype=bits, device=matrix.device)
    view = torch.as_strided(memory, (rows, columns), (stride, 1), offset)
    view.copy_(matrix.view(bits))
    return view.view(matrix.dtype)


def _padding(layout: str, columns: int) -> int:
    return {"padded": -columns % PADDING + PADDING, "odd": 1 + columns % 2}.get(layout, 0)


@functools.lru_cache(maxsize=4096)
def expected_of(spec: CallSpec, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The reference's result and, as the center of a tolerance, the exact one."""
    call = make_call(spec, device)
    rounded = scaled_mm(
        call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, call.bias, azp_adj=call.azp_adj, azp=call.azp
    )
    exact = None
    if spec.a_dtype is not DType.S8 or spec.groups is not None:
        exact = exact_scaled_mm(call.a, call.b, call.a_scales, call.b_scales, call.bias)
    return rounded, exact


@functools.lru_cache(maxsize=4096)
def _sum_error(spec: CallSpec, accumulation: Accumulation, device: torch.device) -> Tensor:
    call = make_call(spec, device)
    return accumulation_error(call.a, call.b, accumulation)


@functools.lru_cache(maxsize=4096)
def bound_of(spec: CallSpec, accumulation: Accumulation, device: torch.device) -> Tensor:
    """How far from the exact result a right kernel's may be."""
    call = make_call(spec, device)
    # The sum depends on shape and data alone: one bound serves all scales, biases and layouts.
    plain = CallSpec(m=spec.m, n=spec.n, k=spec.k, a_dtype=spec.a_dtype, data=spec.data)
    error = _sum_error(plain, accumulation, device)
    return tolerance(call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, accumulation, call.bias, error)


def compare(call: Call, accumulation: Accumulation) -> Comparison:
    """Hold call.out against the result that the spec must give."""
    rounded, exact = expected_of(call.spec, call.out.device)
    is_exact = exact is None or call.spec.data == "integers"
    bound = None if is_exact else bound_of(call.spec, accumulation, call.out.device)
    return Wanted(rounded=rounded, exact=exact, bound=bound).compare(call.out)
