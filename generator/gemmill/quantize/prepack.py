"""Block-scaled weights made ready for Hopper, which multiplies e4m3, f16 and bf16 but no block scales.

A kernel makes an operand of code and scale in registers. The operand is exact, or the op's name says that it is not:

    fp4_weight_mm         code * scale in the activations' type, f16 or bf16: zero or a normal number
    mxfp4_fp8_mm          code * 2^shift in e4m3, where shifts that share a base spread over at most 14 binary orders
    nvfp4_fp8_mm_rounded  code * scale / fold rounded to e4m3: by its own name only, and its error is reported

Powers of two as scales become relative to a base. That is a factor of each row in the epilogue, or of each 128 columns
where activations have a scale for those. Of the bases on which all is exact, one that makes normal numbers only comes
first, since a kernel may make those by two multiplications. Then comes the one nearest to 1. Groups of zeros take no
part. So the packed tensor has the same format: codes as they were, and ue8m0 scales relative to the base. `fp4_blocks`
makes the order in which the kernel of 4-bit weights reads both. Peers (Humming, Marlin) clamp scales silently where
they spread too far.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, encode, pack, two_to, unpack
from gemmill.formats.quantise import BlockScaled, check_global_scale
from gemmill.quantize.folding import exact_shifts
from gemmill.quantize.report import PrepackReport, Tally
from gemmill.vocab.float_type import BF16, E4M3, F16, UE8M0, FloatType
from gemmill.vocab.format import BLOCK_SCALED, MXFP4, NVFP4

FORMATS_OF = {
    "fp4_weight_mm": BLOCK_SCALED,
    "mxfp4_fp8_mm": (MXFP4,),
    "nvfp4_fp8_mm_rounded": (NVFP4,),
}
"""The formats that an op takes weights in."""
WIDENED = {"bf16": BF16, "f16": F16}
"""Operand types of fp4_weight_mm, by the name of its activations."""
BASE_COLUMNS = 128
"""Columns that share a base where activations have a scale for each 128 of them."""
_CHUNK = 1 << 22
"""Weights in one pass, so that memory is bounded."""
_NOWHERE = 1 << 20
"""An exponent beyond every other."""


@dataclass(frozen=True, kw_only=True)
class Prepacked:
    """Weights as a kernel takes them: operand * base. A global scale that is not in the base still divides."""

    op: str
    operand: FloatType
    """The type that the tensor core multiplies."""
    weights: BlockScaled
    """Codes, and scales relative to the base."""
    base: Tensor
    """f32 [N], or [N, K / 128] rounded up."""
    fold: Tensor
    """f32 [N]: powers of two that divide code * scale of nvfp4 before it is rounded to e4m3; ones elsewhere."""
    report: PrepackReport

    def operand_values(self) -> Tensor:
        """The numbers that a kernel multiplies, float64 [N, K]. Each is a number of the operand's type."""
        values = self.weights.values() / self.fold.double().unsqueeze(1)
        return _rounded(values) if self.op == "nvfp4_fp8_mm_rounded" else values

    def values(self) -> Tensor:
        """The weights, float64 [N, K]."""
        if self.base.dim() == 1:
            return self.operand_values() * self.base.double().unsqueeze(1)
        return self.operand_values() * self.base.double().repeat_interleave(BASE_COLUMNS, 1)[:, : self.weights.k]


def prepack(
    weights: BlockScaled,
    *,
    for_op: str,
    activations: str = "bf16",
    global_scale: Tensor | None = None,
    base_per_group: bool = False,
    fallback: str | None = None,
    allow_requant: bool = False,
) -> Prepacked:
    """Pack weights [N, K] for an op. One decision covers the whole tensor; it does not change its input.

    for_op: a key of FORMATS_OF.

    activations: "bf16" or "f16", of fp4_weight_mm.

    global_scale: f32, one value, of nvfp4_fp8_mm_rounded only. It becomes part of the base. For other ops it is in the
    op's alpha.

    base_per_group: a base for each 128 columns instead of each row, of mxfp4_fp8_mm only.

    fallback: "bf16" packs all for bf16 where a row does not fold exactly, of mxfp4_fp8_mm only.

    allow_requant: clamps the smallest scales of rows that do not fold, and codes their weights again, of mx formats.

    Raises ValueError, in a sentence, for arguments that do not go together, and for weights that are NaN. It names a
    row whose scales spread too far by its number.
    """
    _check_op(weights, for_op, activations, global_scale)
    _check_choices(for_op, base_per_group, fallback, allow_requant)
    _refuse_codes(weights)
    if for_op == "nvfp4_fp8_mm_rounded":
        assert global_scale is not None
        return _fold_rounded(weights, global_scale)
    operand = E4M3 if for_op == "mxfp4_fp8_mm" else WIDENED[activations]
    if weights.format.has_global_scale:
        ones = torch.ones(weights.codes.shape[0], device=weights.codes.device, dtype=torch.float32)
        report = Tally().report(weights)
        return Prepacked(op=for_op, operand=operand, weights=weights, base=ones, fold=ones, report=report)
    columns = BASE_COLUMNS if base_per_group else weights.k
    folding = _Folding(weights, operand, columns)
    if fallback is not None and not folding.exact:
        operand = WIDENED[fallback]
        folding = _Folding(weights, operand, columns)
    if not folding.exact and not allow_requant:
        raise ValueError(folding.refusal(for_op, offers_fallback=operand is E4M3))
    packed, tally = folding.apply()
    base = two_to(folding.base)
    return Prepacked(
        op=for_op,
        operand=operand,
        weights=packed,
        base=base if base_per_group else base.reshape(-1),
        fold=torch.ones(packed.codes.shape[0], device=base.device, dtype=torch.float32),
        report=tally.report(weights, spread=folding.spread, subnormal=folding.subnormal),
    )


class _Folding:
    """The base that each row (or 128 columns of it) gets, and whether its scales are exact on it."""

    def __init__(self, weights: BlockScaled, operand: FloatType, columns: int) -> None:
        self.weights, self.operand = weights, operand
        self.groups = max(columns // weights.format.group, 1)
        """Scales that share a base."""
        normal = exact_shifts(weights.format.code, operand, normal=True)
        self.shifts = exact_shifts(weights.format.code, operand) if operand is E4M3 else normal
        """Exponents relative to a base that keep the operand exact. Upcasting takes normal numbers only."""
        if not self.shifts:
            raise ValueError(
                f"{operand} does not hold all {weights.format.code} codes of {weights.format} as normal numbers, whatever "
                f"the base: pack for bf16"
            )
        low, high = (torch.cat(part) for part in zip(*self._extremes(), strict=True))
        self.spread = high - low
        least = high - self.shifts[-1]
        self.fits = least <= low - self.shifts[0]
        self.subnormal = self.fits & (least > low - normal[0])
        most = torch.where(self.subnormal, low - self.shifts[0], low - normal[0])
        nearest_to_one = torch.minimum(torch.maximum(torch.zeros_like(low), least), most)
        self.base = torch.where(self.fits, nearest_to_one, least)
        """Exponents of the bases, int32 [N, bases]. Where a row does not fit, its largest scales stay."""

    @property
    def exact(self) -> bool:
        """Whether every row folds without loss."""
        return bool(self.fits.all())

    def _extremes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Smallest and largest exponent that share a base, int32 [rows, bases], for some rows at a time; 0 where all is
        zero."""
        code = self.weights.format.code
        for rows in _chunks(self.weights):
            codes = unpack(self.weights.codes[rows], code.bits) & ((1 << (code.bits - 1)) - 1)
            zero = (grouped(codes, self.weights.format.group) == 0).all(dim=-1)
            exponents = self.weights.scales[rows].int() - UE8M0.bias
            low = self._by_base(exponents.masked_fill(zero, _NOWHERE), _NOWHERE).amin(dim=-1)
            high = self._by_base(exponents.masked_fill(zero, -_NOWHERE), -_NOWHERE).amax(dim=-1)
            yield low.masked_fill(low > high, 0), high.masked_fill(low > high, 0)

    def _by_base(self, exponents: Tensor, padding: int) -> Tensor:
        """The exponents [rows, scales] as [rows, bases, scales of a base]."""
        bases = max(-(-exponents.shape[1] // self.groups), 1)
        padded = torch.nn.functional.pad(exponents, (0, bases * self.groups - exponents.shape[1]), value=padding)
        return grouped(padded, self.groups)

    def refusal(self, op: str, *, offers_fallback: bool) -> str:
        """Why the weights do not fold, by the first row that does not."""
        row, base = (~self.fits).nonzero()[0].tolist()
        columns = self.groups * self.weights.format.group
        last = min((base + 1) * columns, self.weights.k) - 1
        ways = "fallback='bf16' to widen activations instead, or " if offers_fallback else ""
        return (
            f"{op} folds scales of {self.weights.format} into {self.operand} exactly where those that share a base spread over "
            f"at most {len(self.shifts) - 1} binary orders, and row {row} has {int(self.spread[row, base])} in columns "
            f"{base * columns} to {last}: pass {ways}allow_requant=True to clamp the smallest and have the error reported"
        )

    def apply(self) -> tuple[BlockScaled, Tally]:
        """The weights on their bases, and a tally of the changes. Only rows that do not fit get new codes."""
        weights, tally = self.weights, Tally(requantised_rows=int((~self.fits).any(dim=1).sum()))
        codes, scales = weights.codes, torch.empty_like(weights.scales)
        if tally.requantised_rows:
            codes = codes.clone()
        for rows in _chunks(weights):
            exponents = weights.scales[rows].int() - UE8M0.bias
            relative = exponents - self.base[rows].repeat_interleave(self.groups, 1)[:, : exponents.shape[1]]
            shifts = relative.clamp(self.shifts[0], self.shifts[-1])
            scales[rows] = (shifts + UE8M0.bias).to(torch.uint8)
            if tally.requantised_rows:
                before = replace(weights, codes=weights.codes[rows], scales=weights.scales[rows]).values()
                codes[rows] = _coded_anew(weights, rows, relative - shifts)
                after = replace(weights, codes=codes[rows], scales=scales[rows]).values()
                base = torch.exp2(self.base[rows].double()).repeat_interleave(self.groups * weights.format.group, 1)
                tally.add(before, after * base[:, : weights.k])
        return BlockScaled(format=weights.format, codes=codes, scales=scales), tally


def _coded_anew(weights: BlockScaled, rows: slice, orders: Tensor) -> Tensor:
    """Packed codes of some rows, each group times 2^orders [rows, groups], to nearest. Groups of zeros may have any
    orders."""
    code = weights.format.code
    values = decode(unpack(weights.codes[rows], code.bits), code)
    scaled = grouped(values, weights.format.group) * two_to(orders.clamp(-126, 0))[..., None]
    return pack(encode(scaled, code).flatten(-2), code.bits)


def _fold_rounded(weights: BlockScaled, global_scale: Tensor) -> Prepacked:
    """nvfp4 in e4m3: products on the smallest power of two for each row with which none is above 448, rounded."""
    tally, exponents = Tally(), []
    for rows in _chunks(weights):
        before = replace(weights, codes=weights.codes[rows], scales=weights.scales[rows]).values()
        fraction, exponent = torch.frexp(before.abs().amax(dim=1) / E4M3.maximum)
        exponent = torch.where(fraction == 0, 0, exponent - (fraction == 0.5).int())
        exponents.append(exponent)
        fold = torch.exp2(exponent.double()).unsqueeze(1)
        tally.add(before, _rounded(before / fold) * fold)
    fold = two_to(torch.cat(exponents).int())
    return Prepacked(
        op="nvfp4_fp8_mm_rounded",
        operand=E4M3,
        weights=weights,
        base=fold / global_scale.reshape(1),
        fold=fold,
        report=tally.report(weights),
    )


def _rounded(values: Tensor) -> Tensor:
    """Values rounded to e4m3, float64."""
    return decode(encode(values.float(), E4M3), E4M3, torch.float64)


def _chunks(weights: BlockScaled) -> Iterator[slice]:
    """Rows of about _CHUNK weights together; for no rows one empty slice."""
    count = max(_CHUNK // max(weights.k, 1), 1)
    return (slice(start, start + count) for start in range(0, max(weights.codes.shape[0], 1), count))


def _check_op(weights: BlockScaled, for_op: str, activations: str, global_scale: Tensor | None) -> None:
    if (formats := FORMATS_OF.get(for_op)) is None:
        raise ValueError(f"there is nothing to prepack for {for_op!r}: the ops are {', '.join(FORMATS_OF)}")
    if weights.format not in formats:
        raise ValueError(f"{for_op} takes {', '.join(map(str, formats))} weights, got {weights.format}")
    if activations not in WIDENED:
        raise ValueError(f"activations are {activations!r}, expected {' or '.join(WIDENED)}")
    if (global_scale is not None) != (for_op == "nvfp4_fp8_mm_rounded"):
        given = (
            "no global scale, which it" if global_scale is None else "a global scale, which only nvfp4_fp8_mm_rounded"
        )
        raise ValueError(f"prepack for {for_op} got {given} has in its base: elsewhere it is part of alpha")
    if global_scale is not None:
        check_global_scale(global_scale)


def _check_choices(for_op: str, base_per_group: bool, fallback: str | None, allow_requant: bool) -> None:
    if base_per_group and for_op != "mxfp4_fp8_mm":
        raise ValueError(
            f"prepack for {for_op} got base_per_group=True: only mxfp4_fp8_mm adds sums of {BASE_COLUMNS} columns"
        )
    if fallback not in (None, "bf16") or (fallback is not None and for_op != "mxfp4_fp8_mm"):
        raise ValueError(
            f"prepack for {for_op} got fallback={fallback!r}: mxfp4_fp8_mm has one, 'bf16', other ops have none"
        )
    if fallback is not None and allow_requant:
        raise ValueError("prepack got fallback='bf16' and allow_requant=True, two answers to one question: pass one")


def _refuse_codes(weights: BlockScaled) -> None:
    code = weights.format.code
    if code.nan_code is None:
        return
    for rows in _chunks(weights):
        wrong = (unpack(weights.codes[rows], code.bits) & ((1 << (code.bits - 1)) - 1)) > code.last_code
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"weight [{rows.start + row}, {column}] of {weights.format} is NaN or infinite: a checkpoint's weights are "
                f"finite"
            )
