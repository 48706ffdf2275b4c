"""4-bit weights put into the order in which Hopper's kernel reads them (`gemmill.formats.fp4_blocks`)."""

from dataclasses import replace

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import two_to
from gemmill.formats.fp4_blocks import CODE_BYTES, SCALE_BYTES, Fp4Blocks, chunks, in_pairs, in_words, table_of
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.prepack import Prepacked
from gemmill.vocab.float_type import BF16, UE8M0
from gemmill.vocab.format import MXFP4, NVFP4


def to_blocks(weights: Prepacked, *, k_multiple: int = STAGE_COLUMNS) -> Fp4Blocks:
    """The blocks of weights that `prepack` made for fp4_weight_mm and bf16, in the kernel's order. It does not change
    its input.

    k_multiple: pads K to a multiple of it, and is a multiple of 64. The op takes STAGE_COLUMNS.

    Raises ValueError, in a sentence, for weights that no kernel reads, and for a row of mxfp4 whose scales spread too
    far.
    """
    _check(weights, k_multiple)
    scaled, base = _lowered(weights) if weights.weights.format == MXFP4 else (weights.weights, weights.base)
    n, k, group = scaled.codes.shape[0], scaled.k, scaled.format.group
    tiles, columns = -(-n // SIDE), -(-k // k_multiple) * k_multiple
    blocks = scaled.codes.new_empty(tiles, columns // SIDE, CODE_BYTES + SIDE * SIDE // group)
    table = table_of(dict(enumerate(SCALE_BYTES)), blocks.device)
    for part in chunks(tiles, SIDE * columns):
        rows, count = slice(part.start * SIDE, part.stop * SIDE), (part.stop - part.start) * SIDE
        codes, scales = scaled.codes[rows], scaled.scales[rows]
        if scaled.format == NVFP4:
            codes = grouped(codes, group // 2).masked_fill((scales == 0)[..., None], 0).flatten(-2)
            scales = table[scales.int()]
        blocks[part, :, :CODE_BYTES] = in_words(_padded(codes, count, columns // 2))
        blocks[part, :, CODE_BYTES:] = in_pairs(_padded(scales, count, columns // group), SIDE // group)
    return Fp4Blocks(format=scaled.format, n=n, k=k, blocks=blocks, base=base)


def _check(weights: Prepacked, k_multiple: int) -> None:
    if weights.operand is not BF16 or weights.base.dim() != 1:
        raise ValueError(
            f"blocks are for weights that become bf16 on a base for each row, got {weights.operand} on a base of "
            f"{weights.base.dim()} dimensions: prepack for fp4_weight_mm with activations='bf16'"
        )
    if weights.weights.format not in (NVFP4, MXFP4):
        raise ValueError(f"blocks hold 4-bit codes, those of nvfp4 and mxfp4, got {weights.weights.format}")
    if k_multiple < 1 or k_multiple % SIDE:
        raise ValueError(f"k_multiple is {k_multiple}, expected columns of whole blocks: a multiple of {SIDE}")


_GREATEST, _SPREAD = 1, 126
"""Exponents of mxfp4's scales on the kernel's base: the largest, and how far the smallest may lie below it."""


def _lowered(packed: Prepacked) -> tuple[BlockScaled, Tensor]:
    """mxfp4 weights on bases on which no scale of codes other than zero is above 2 or below 2^-125. Raises
    ValueError."""
    weights, lowest = packed.weights, UE8M0.bias + _GREATEST - _SPREAD
    scales, base = torch.empty_like(weights.scales), packed.base.clone()
    for rows in chunks(len(base) if weights.k else 0, weights.k):
        zero = ((grouped(weights.codes[rows], MXFP4.group // 2) & 0x77) == 0).all(dim=-1)
        exponents = weights.scales[rows].int()
        high = exponents.masked_fill(zero, 0).amax(dim=1)
        down = (high - UE8M0.bias - _GREATEST).clamp(min=0)
        lowered = exponents - down[:, None]
        if (wrong := (~zero & (lowered < lowest)).any(dim=1)).any():
            row = int(wrong.nonzero()[0])
            spread = int(high[row] - exponents[row].masked_fill(zero[row], UE8M0.last_code).amin())
            raise ValueError(
                f"blocks take scales of {MXFP4} that spread over at most {_SPREAD} binary orders in a row, and row "
                f"{rows.start + row} has {spread}: set its smallest groups to zero"
            )
        scales[rows] = lowered.clamp(lowest, UE8M0.bias + _GREATEST).to(torch.uint8)
        base[rows] *= two_to(down)
    return replace(weights, scales=scales), base


def _padded(rows: Tensor, count: int, columns: int) -> Tensor:
    """Rows with zeros below and to the right."""
    return torch.nn.functional.pad(rows, (0, columns - rows.shape[1], 0, count - rows.shape[0]))
