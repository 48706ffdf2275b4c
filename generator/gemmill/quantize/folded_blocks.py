"""4-bit weights put into the order in which Hopper's FP8 kernel reads them (`gemmill.formats.folded_blocks`)."""

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import unpack
from gemmill.formats.folded_blocks import (
    CODE_BYTES,
    LEAST_NORMAL_SHIFT,
    LEAST_SHIFT,
    LISTED,
    MOST_SHIFT,
    NVFP4_BIAS,
    ONE,
    FoldedBlocks,
    in_pairs,
    in_words,
)
from gemmill.formats.fp4_blocks import SCALE_BYTES, chunks, table_of
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.formats.packed_rows import joined
from gemmill.quantize.prepack import Prepacked
from gemmill.vocab.float_type import E4M3, UE8M0
from gemmill.vocab.format import MXFP4

OPS = ("mxfp4_fp8_mm", "nvfp4_fp8_mm_rounded")


def to_folded_blocks(weights: Prepacked) -> FoldedBlocks:
    """The blocks of weights that `prepack` made for mxfp4_fp8_mm or nvfp4_fp8_mm_rounded, in the kernel's order.

    It does not change its input. Weights that `fallback="bf16"` left unfolded stay in rows, scales behind codes. Raises
    ValueError for weights of another op.
    """
    if weights.op not in OPS:
        raise ValueError(f"folded blocks are for {' and '.join(OPS)}, got weights packed for {weights.op}")
    scaled, format = weights.weights, weights.weights.format
    n, k = scaled.codes.shape[0], scaled.k
    if weights.operand is not E4M3:
        return FoldedBlocks(format=format, n=n, k=k, blocks=joined(scaled), base=weights.base)
    tiles, columns = -(-n // SIDE), -(-k // STAGE_COLUMNS) * STAGE_COLUMNS
    of_block = BLOCK_COLUMNS // format.group
    blocks = scaled.codes.new_empty(tiles, columns // BLOCK_COLUMNS, CODE_BYTES + SIDE * of_block)
    for part in chunks(tiles, SIDE * columns):
        rows = slice(part.start * SIDE, part.stop * SIDE)
        codes = unpack(scaled.codes[rows], 4)
        zero = ((grouped(codes, format.group) & 7) == 0).all(dim=-1)
        if format == MXFP4:
            scales = _shifts(scaled.scales[rows], zero)
        else:
            scales = _relative(scaled.scales[rows], weights.fold[rows]).masked_fill(zero, 0)
        count = (part.stop - part.start) * SIDE
        blocks[part, :, :CODE_BYTES] = in_words(_padded(codes, count, columns))
        packed = in_pairs(_padded(scales, count, columns // format.group, value=ONE[format]), of_block)
        if format == MXFP4:
            least = packed.amin(dim=-1, keepdim=True)
            packed = packed | torch.where(least < 8 * (LEAST_NORMAL_SHIFT - LEAST_SHIFT), LISTED, 0).to(torch.uint8)
        blocks[part, :, CODE_BYTES:] = packed
    return FoldedBlocks(format=format, n=n, k=k, blocks=blocks, base=weights.base)


def _shifts(scales: Tensor, zero: Tensor) -> Tensor:
    """Bytes of mxfp4's scales relative to a base. Groups of zeros may have any."""
    shifts = (scales.int() - UE8M0.bias).clamp(LEAST_SHIFT, MOST_SHIFT).masked_fill(zero, MOST_SHIFT)
    return (8 * (shifts - LEAST_SHIFT)).to(torch.uint8)


def _relative(scales: Tensor, fold: Tensor) -> Tensor:
    """Bytes of nvfp4's scales relative to the row's fold, a power of two; 0 where all products round to zero."""
    table = table_of(dict(enumerate(SCALE_BYTES)), scales.device)
    five = table[scales.long()].int()
    exponent = (five >> 3) - 10 - (torch.frexp(fold)[1] - 1)[:, None] + NVFP4_BIAS
    return torch.where((five == 0) | (exponent < 0), 0, exponent.clamp(max=31) << 3 | five & 7).to(torch.uint8)


def _padded(rows: Tensor, count: int, columns: int, value: int = 0) -> Tensor:
    """Rows with values below and to the right."""
    return torch.nn.functional.pad(rows, (0, columns - rows.shape[1], 0, count - rows.shape[0]), value=value)
