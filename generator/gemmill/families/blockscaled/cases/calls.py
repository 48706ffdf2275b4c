"""Calls by their sizes and options: operands, and expected results."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.arithmetic import OF_16_BITS, OF_E4M3
from gemmill.families.blockscaled.bounds import any_order_tolerance
from gemmill.families.blockscaled.ops import OPS_OF
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.reference import exact_mm, rounded
from gemmill.formats.codes import encode, pack
from gemmill.formats.folded_blocks import FoldedBlocks
from gemmill.formats.layout import BLOCK_COLUMNS
from gemmill.formats.quantise import BlockScaled, swizzle
from gemmill.numerics.comparison import Wanted
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.packed_rows import to_rows
from gemmill.quantize.prepack import prepack
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType, Format

_SCALES = {True: (48, 80), False: (122, 131)}
"""First byte and the end of random scales, by whether they are ue4m3: 2^-1 to 2^2 and 2^-5 to 2^3."""
_ONE, _STEP = {True: 56, False: 127}, {True: 8, False: 1}
"""The byte of 1, and the increment that doubles a scale."""


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    m: int
    n: int
    k: int
    pair: Pair
    op: str = ""
    """Name of the op; where it is empty, the first op that computes the pair."""
    out_dtype: DType = DType.BF16
    prepacked: bool = True
    """Whether to pack the weights, where that is possible. Unpacked weights of folding ops have scales that spread too
    far to fold.
    """
    grouped: bool = False
    """Whether activations of e4m3 have a scale for each 128 columns."""
    bias: bool = False
    alpha: bool = True
    data: str = "random"
    """Kind of data: "random", "integers" or "single". "integers" are small, with powers of two as scales: every order of
    summation gives the same. "single" is random weights, of which each row of A takes one."""
    pad: int = 0
    """Room between the rows of a and of out: elements, or bytes where these are codes."""

    @property
    def name(self) -> str:
        """The op's name."""
        return self.op or OPS_OF[self.pair][0]

    @property
    def is_widened(self) -> bool:
        """Whether A is of 16-bit numbers."""
        return self.pair in WEIGHT_PAIRS

    @property
    def is_folded(self) -> bool:
        """Whether A is of e4m3 numbers without block scales."""
        return self.pair in FOLDED_PAIRS

    @property
    def is_exact(self) -> bool:
        """Whether every right kernel gives the same result."""
        return self.data != "random"

    def __str__(self) -> str:
        flags = [name for name in ("bias", "alpha") if getattr(self, name)]
        words = [f"M, N, K = {self.m}, {self.n}, {self.k}", str(self.pair), str(self.out_dtype), *flags]
        words += ["exact"] if self.data == "integers" else [self.data] if self.is_exact else []
        words += ["packed"] if self.is_widened and self.prepacked else []
        words += ["unfolded"] if self.is_folded and not self.prepacked else []
        words += ["scales in groups"] if self.grouped else []
        return "; ".join(words + ([f"rows {self.pad} apart"] if self.pad else []))


@dataclass(frozen=True, kw_only=True)
class Operands:
    """A spec's tensors but for the result, by the roles of the op's arguments; and the values that they stand for."""

    given: dict[str, Any]
    a: Tensor
    """Values of A, float64 [M, K], without global scales."""
    b: Tensor
    """Values of B, float64 [N, K]."""

    def wanted(self, spec: CallSpec, rows: Tensor | None = None) -> Wanted:
        """The expected result, or some rows of it."""
        alpha, bias = (self.given.get(name) for name in ("alpha", "bias"))
        a = self.a if rows is None else self.a[rows]
        out_dtype = getattr(torch, spec.out_dtype.torch_name)
        exact = exact_mm(a, self.b, alpha, bias)
        if spec.is_exact:
            return Wanted(rounded=rounded(exact, out_dtype))
        core = OF_E4M3 if spec.is_folded and spec.prepacked else OF_16_BITS
        promoted_k = BLOCK_COLUMNS if spec.grouped else None
        bound = any_order_tolerance(a, self.b, out_dtype, alpha, bias, core=core, promoted_k=promoted_k)
        return Wanted(rounded=rounded(exact, out_dtype), exact=exact, bound=bound)


def make_operands(spec: CallSpec, device: torch.device) -> Operands:
    """New tensors for a spec; the same spec has the same data."""
    generator = torch.Generator(device=device).manual_seed(spec.m * 1_000_003 + spec.n * 1009 + spec.k)
    weights = make_matrix(spec.pair.b_format, spec.n, spec.k, spec.data, generator)
    return operands_of(spec, weights, generator)


def operands_of(spec: CallSpec, weights: BlockScaled, generator: torch.Generator) -> Operands:
    """New tensors for a spec with existing weights."""
    p, device = spec, generator.device
    out_dtype = getattr(torch, p.out_dtype.torch_name)
    given: dict[str, Any] = {
        "alpha": torch.tensor([0.25], device=device, dtype=torch.float32) if p.alpha else None,
        "bias": None,
    }
    if p.bias:
        given["bias"] = (
            torch.randn(p.n, device=device, generator=generator, dtype=torch.float32).mul(4).round().to(out_dtype)
        )
    if p.is_widened:
        numbers = _numbers(p.m, p.k, p.data, generator).to(out_dtype)
        given |= {"a": apart(numbers, p.pad), "format": str(p.pair.b_format), "prepacked": p.prepacked}
        given |= packed(p, weights) if p.prepacked else {"b": weights.codes, "b_sf": weights.scales}
        return Operands(given=given, a=numbers.double(), b=weights.values())
    if p.is_folded:
        return _folded(p, weights, given, generator)
    assert p.pair.a_format is not None
    a = make_matrix(p.pair.a_format, p.m, p.k, p.data, generator)
    given |= {
        "a": apart(a.codes, p.pad),
        "a_sf": swizzle(a.scales),
        "b": weights.codes,
        "b_sf": swizzle(weights.scales),
    }
    return Operands(given=given, a=a.values(), b=weights.values())


def arguments_of(op: str, roles: tuple[str, ...], given: dict[str, Any], out: Tensor) -> list[Any]:
    """The arguments of an op in the order of its schema."""
    return [(given | {"out": out})[role] for role, _ in zip(roles, BY_NAME[op].arguments, strict=True)]


def packed(spec: CallSpec, weights: BlockScaled) -> dict[str, Tensor]:
    """The weights in the order of the kernel for 16-bit activations, by the roles of their arguments."""
    half = spec.out_dtype is DType.F16
    ready = prepack(weights, for_op=spec.name, activations="f16" if half else "bf16")
    if spec.pair in FP4_PAIRS and not half:
        blocks = to_blocks(ready)
        return {"b": blocks.blocks, "b_sf": blocks.base}
    rows, base = to_rows(ready)
    return {"b": rows, "b_sf": base}


def folded(spec: CallSpec, weights: BlockScaled) -> FoldedBlocks:
    """Weights in the order of the kernel for e4m3 activations."""
    op, of_nvfp4 = spec.name, weights.format.has_global_scale
    global_scale = torch.tensor([2.0], device=weights.codes.device, dtype=torch.float32) if of_nvfp4 else None
    fallback = None if spec.prepacked else "bf16"
    ready = prepack(weights, for_op=op, global_scale=global_scale, base_per_group=spec.grouped, fallback=fallback)
    return to_folded_blocks(ready)


def _folded(p: CallSpec, weights: BlockScaled, given: dict[str, Any], generator: torch.Generator) -> Operands:
    device, parts = generator.device, -(-p.k // BLOCK_COLUMNS) if p.grouped else 1
    numbers = _numbers(p.m, p.k, p.data, generator).to(torch.float8_e4m3fn)
    powers = torch.randint(-2, 2, (p.m, parts), device=device, generator=generator, dtype=torch.int64).float()
    scales = (
        torch.exp2(powers)
        if p.is_exact
        else torch.rand(p.m, parts, device=device, generator=generator, dtype=torch.float32) + 0.5
    )
    if not p.prepacked and p.n and p.k:  # a spread that does not fold
        weights.scales[0, 0] = 60
    packed_weights = folded(p, weights)
    given |= {
        "a": apart(numbers, p.pad),
        "a_sf": scales,
        "b": packed_weights.blocks,
        "b_sf": packed_weights.base,
        "alpha": None,
    }
    of_columns = scales.double().repeat_interleave(BLOCK_COLUMNS, 1)[:, : p.k] if p.grouped else scales.double()
    return Operands(given=given, a=numbers.double() * of_columns, b=packed_weights.values())


def make_matrix(format: Format, rows: int, k: int, data: str, generator: torch.Generator) -> BlockScaled:
    """A matrix of random codes with plain scales."""
    numbers = _numbers(rows, k, data, generator)
    is_fraction, shape = format.has_global_scale, (rows, format.scale_count(k))
    if data == "single":
        codes = torch.randint(0, 16, (rows, k), device=generator.device, generator=generator, dtype=torch.int64).to(
            torch.uint8
        )
        first, end = (1, 127) if is_fraction else (_ONE[False] - 8, _ONE[False] + 7)
        scales = torch.randint(first, end, shape, device=generator.device, generator=generator, dtype=torch.int64)
        return BlockScaled(format=format, codes=pack(codes, format.code.bits), scales=scales.to(torch.uint8))
    if data == "integers":
        powers = torch.randint(-1, 2, shape, device=generator.device, generator=generator, dtype=torch.int64)
        scales = _ONE[is_fraction] + _STEP[is_fraction] * powers
    else:
        numbers = numbers * 2
        scales = torch.randint(
            *_SCALES[is_fraction], shape, device=generator.device, generator=generator, dtype=torch.int64
        )
    codes = pack(encode(numbers, format.code), format.code.bits)
    return BlockScaled(format=format, codes=codes, scales=scales.to(torch.uint8))


def _numbers(rows: int, k: int, data: str, generator: torch.Generator) -> Tensor:
    device = generator.device
    if data == "integers":
        return torch.randint(-2, 3, (rows, k), device=device, generator=generator, dtype=torch.int64).float()
    if data == "single":
        columns = torch.randperm(k, device=device, generator=generator, dtype=torch.int64)[:rows]
        return torch.nn.functional.pad(
            torch.eye(k, device=device, dtype=torch.float32)[columns], (0, 0, 0, rows - len(columns))
        )
    return torch.randn(rows, k, device=device, generator=generator, dtype=torch.float32)


def apart(matrix: Tensor, pad: int) -> Tensor:
    """The same matrix, with `pad` elements between its rows."""
    memory = matrix.new_zeros(matrix.shape[0], matrix.shape[1] + pad)
    view = memory[:, : matrix.shape[1]]
    return view.copy_(matrix)
