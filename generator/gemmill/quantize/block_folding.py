"""Weights in blocks of 32 x 32 with scales of powers of two, folded into one scale for each 128 along K.

A tensor core adds up 128 columns at once where they share a scale, and 32 where they do not. Folding moves the powers of two of
blocks into codes: value = code * 2^e is a number of e4m3 on the base 2^b where |value| <= 448 * 2^b, and where value is a multiple of
2^(b - 9), e4m3's least number on it. So values that share a base fold exactly where their largest magnitude A and the largest power
of two L that divides all of them have A / 448 <= 2^b <= 2^9 L for some b. Codes near the subnormals have small L: those shifts lose.

    block128    128 rows and 128 columns share a base: the scales of DeepSeek V3, and the fastest kernels
    group128    the 128 columns of one row do: most rows of weights that no block folds

Activations of a folded weight are quantised in groups of 128. In groups of 32 with ue8m0 scales their fold would be that same group's:
the largest of four powers of two is the power of two of the largest magnitude, and a code that is rounded once lies no further off.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.codes import two_to
from gemmill.quantize.report import PrepackReport, Tally
from gemmill.quantize.weights import BLOCKS, QuantizedWeight, chunks
from gemmill.vocab.float_type import E4M3

FOLDS = ("block128", "group128")
"""Formats that a weight of block32 folds into, the one with the faster kernels first."""
SOURCE = "block32"
_ULP = -9
"""e4m3's least number is 2^_ULP."""
_LEAST, _MOST = -126, 127
"""Exponents of normal numbers of float32, as kernels multiply by them."""
_NOWHERE = 1 << 20
"""An exponent beyond every other."""


@dataclass(frozen=True, kw_only=True)
class PrepackedBlocks:
    """A weight of blocks of 32 x 32, folded."""

    weight: QuantizedWeight
    """Of `block128` or `group128`, which a layer or `cutlass_scaled_mm` takes."""
    report: PrepackReport

    def __str__(self) -> str:
        return f"{SOURCE} folds into {self.weight.format}: {self.report}"


def prepack_blocks(weight: QuantizedWeight, *, fold: str | None = None, rounded: bool = False) -> PrepackedBlocks:
    """Fold a weight [N, K] of block32, whose scales are powers of two, into scales for each 128 along K.

    fold: the format of the result, one of FOLDS. By default the first that is exact for the whole weight, and with `rounded` block128.

    rounded: round values that do not fold to the nearest number of e4m3, ties to even. A value moves by at most 2^(b - 10), b being the least
    base of its block: by less than 2^-17 / 1.75 of the block's largest magnitude. The report has the error.

    The input is not changed. Raises ValueError, in a sentence, for another format, for scales that are no powers of two, for codes or
    scales that are NaN, and, unless `rounded`, for a weight that does not fold exactly. It names the first row that does not, and its
    spread.
    """
    _check(weight, fold)
    asked = FOLDS if fold is None else (fold,)
    foldings = [_Folding(weight, format) for format in (asked[:1] if rounded else asked)]
    found = next((folding for folding in foldings if folding.exact), None)
    if found is None and not rounded:
        raise ValueError(foldings[-1].refusal())
    return (found or foldings[0]).applied()


def folding_share(weight: QuantizedWeight, fold: str) -> float:
    """The share of a weight's groups of 128 columns, of a row or of 128, that fold exactly into a format of FOLDS; 1 where there are none.

    Raises ValueError as `prepack_blocks`.
    """
    _check(weight, fold)
    fits = _Folding(weight, fold).fits
    return float(fits.float().mean()) if fits.numel() else 1.0


class _Folding:
    """Bases of a weight's blocks, and whether all of its values are numbers of e4m3 on them."""

    def __init__(self, weight: QuantizedWeight, format: str) -> None:
        self.weight, self.format, self.block = weight, format, BLOCKS[format]
        parts = list(self._extremes())
        shape = (-(-weight.n // self.block[0]), -(-weight.k // self.block[1]))
        least, most, self.spread = (
            torch.cat([part[i] for part in parts]) if parts else weight.scales.new_zeros(shape).int() for i in range(3)
        )
        self.fits = torch.maximum(least, least.new_tensor(_LEAST)) <= most
        self.base = least.clamp(_LEAST, _MOST)
        """Exponents of bases, int32: the least that hold the largest magnitudes. Values of nobody have 0."""

    @property
    def exact(self) -> bool:
        """Whether the whole weight folds without loss."""
        return bool(self.fits.all())

    def _extremes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The least and the greatest exponent of an exact base of each block, and the binary orders over which its scales spread."""
        for rows in chunks(self.weight.codes, self.block[0]):
            exponents = self._exponents(rows)
            codes = self.weight.codes[rows].view(torch.uint8).int() & 127
            field = codes >> E4M3.mantissa_bits
            digits = torch.where(field > 0, codes & 7 | 8, codes & 7)
            unit = field.clamp(min=1) - E4M3.bias - E4M3.mantissa_bits + exponents
            zero = digits == 0
            # 448 is 14 * 2^5; 15 * 2^5 is beyond it.
            top = unit - 5 + (digits == 15).int() - _below(digits)
            low = unit + torch.frexp((digits & -digits).float())[1] - 1 - _ULP
            least = self._of_blocks(top.masked_fill(zero, -_NOWHERE), -_NOWHERE).amax(dim=(1, 3))
            most = self._of_blocks(low.masked_fill(zero, _NOWHERE), _NOWHERE).amin(dim=(1, 3))
            highest = self._of_blocks(exponents.masked_fill(zero, -_NOWHERE), -_NOWHERE).amax(dim=(1, 3))
            lowest = self._of_blocks(exponents.masked_fill(zero, _NOWHERE), _NOWHERE).amin(dim=(1, 3))
            nothing = least == -_NOWHERE
            yield least.masked_fill(nothing, 0), most, (highest - lowest).masked_fill(nothing, 0)

    def _exponents(self, rows: slice) -> Tensor:
        """The exponents of the scales of rows, int32 [rows, K]."""
        high, wide = BLOCKS[SOURCE]
        of_rows = torch.arange(rows.start, rows.stop, device=self.weight.codes.device, dtype=torch.int64) // high
        exponents = torch.frexp(self.weight.scales)[1].int() - 1
        return exponents[of_rows].repeat_interleave(wide, dim=1)[:, : self.weight.k]

    def _of_blocks(self, values: Tensor, padding: int) -> Tensor:
        """Values [rows, columns] as [blocks, rows of one, blocks, columns of one]."""
        high, wide = self.block
        padded = torch.nn.functional.pad(values, (0, -values.shape[1] % wide, 0, -len(values) % high), value=padding)
        return padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high))

    def refusal(self) -> str:
        """Why the weight does not fold, by the first block that does not."""
        row, group = (~self.fits).nonzero()[0].tolist()
        high, wide = self.block
        last_row, last = min((row + 1) * high, self.weight.n) - 1, min((group + 1) * wide, self.weight.k) - 1
        rows = f"row {row}" if high == 1 else f"rows {row * high} to {last_row}"
        return (
            f"{SOURCE} folds into {self.format} where codes stay numbers of e4m3, and {rows} of columns {group * wide} to {last} do not, "
            f"whose scales spread over {int(self.spread[row, group])} binary orders ({int((~self.fits).sum())} of {self.fits.numel()} such "
            "groups): keep the weight in groups of 32, or pass rounded=True to round codes near the subnormals and have the error reported"
        )

    def applied(self) -> PrepackedBlocks:
        """The weight on its bases, and the report of changed values."""
        weight, tally = self.weight, Tally()
        codes, scales = torch.empty_like(weight.codes), two_to(self.base)
        made = QuantizedWeight(format=self.format, codes=codes, scales=scales)
        for rows in chunks(weight.codes, self.block[0]):
            bases = scales[rows.start // self.block[0] : -(-rows.stop // self.block[0])]
            spread = bases.repeat_interleave(self.block[0], 0)[: rows.stop - rows.start]
            before = weight.values(rows).double()
            on_base = before / spread.repeat_interleave(self.block[1], 1)[:, : weight.k].double()
            # both are exact in f32, except for bits that a subnormal code loses
            codes[rows] = on_base.float().to(torch.float8_e4m3fn)
            if not self.exact:
                tally.add(before, made.values(rows).double())
        of_rows = self.spread.repeat_interleave(self.block[0], 0)[: weight.n]
        return PrepackedBlocks(weight=made, report=tally.report(weight, spread=of_rows))


def _below(digits: Tensor) -> Tensor:
    """By how many binary orders digits of subnormal numbers lie below those of normal ones."""
    return 4 - torch.frexp(digits.clamp(min=1).float())[1].int()


def _check(weight: QuantizedWeight, fold: str | None) -> None:
    if weight.format != SOURCE:
        raise ValueError(
            f"blocks of 32 x 32 fold into scales of 128, got a weight of {weight.format}: there is nothing to fold"
        )
    if fold is not None and fold not in FOLDS:
        raise ValueError(f"{SOURCE} folds into {' or '.join(FOLDS)}, got fold={fold!r}")
    wrong = (torch.frexp(weight.scales)[0] != 0.5) | ~torch.isfinite(weight.scales)
    if wrong.any():
        row, group = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"scale [{row}, {group}] of {SOURCE} is {float(weight.scales[row, group])}: scales that fold are powers of two, as ue8m0 bytes of "
            "0 to 254 are, so keep the weight in groups of 32 or quantise it anew"
        )
    for rows in chunks(weight.codes):
        wrong = (weight.codes[rows].view(torch.uint8) & 127) == 127
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"weight [{rows.start + row}, {column}] of {SOURCE} is NaN: a checkpoint's weights are finite"
            )
