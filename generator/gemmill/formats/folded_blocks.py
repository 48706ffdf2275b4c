"""The order in which Hopper's kernel of 4-bit weights and e4m3 activations reads the weights: blocks of 64 rows and 128 columns.

    block     4096 bytes of codes, two halves of 16 bytes for each of 128 threads; then scales, 256 bytes of mxfp4 or 512 of nvfp4
    half      two steps of 32 columns: a word of row 16 warp + row % 8 and one of that + 8, for each step
    thread    warp * 32 + row % 8 * 4 + quad: columns 4 quad to 4 quad + 3 of a step, and 16 further, which are its part of operand A
              of a tensor core's m64k32
    word      byte i, little-endian: magnitudes of codes 2 i and 2 i + 1 in bits 0 to 2 and 4 to 6, sign of code i in bit 7, of code
              i + 4 in bit 3
    scales    of rows r and r + 8 (r % 16 < 8) side by side, r in order; of a row in the order of columns
    padding   N to 64 and K to 256 columns: codes zero

A scale of mxfp4 is 8 (shift + 8), code * 2^shift is the operand. A block with shifts below -5 has bit 7 of all its scales set: those
operands may be subnormal. One of nvfp4 has five bits of exponent and three of mantissa, 2^(exponent - 22) * 1.mantissa; the
operand is code * scale rounded to e4m3.

Weights that do not fold are packed for bf16 instead, in rows. A row has codes as in a checkpoint, then ue8m0 scales,
then zeros to a multiple of 16 bytes.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, encode
from gemmill.formats.fp4_blocks import chunks
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE
from gemmill.formats.packed_rows import parted
from gemmill.vocab.float_type import E2M1, E4M3
from gemmill.vocab.format import MXFP4, NVFP4, Format

CODE_BYTES = SIDE * BLOCK_COLUMNS // 2
"""Bytes of a block's codes."""
LISTED = 0x80
"""The bit of mxfp4's scales by which operands may be subnormal."""
LEAST_SHIFT, MOST_SHIFT, LEAST_NORMAL_SHIFT = -8, 6, -5
NVFP4_BIAS = 22
E4M3_DTYPE = torch.float8_e4m3fn
_SIGNS = -0x7F7F7F80
"""The sign bits of four bytes, as an int32."""
ONE = {MXFP4: -8 * LEAST_SHIFT, NVFP4: 8 * NVFP4_BIAS}
"""The byte of a scale of 1."""


@dataclass(frozen=True, kw_only=True)
class FoldedBlocks:
    """4-bit weights [N, K] as the kernel reads them."""

    format: Format
    """The format of the weights, mxfp4 or nvfp4."""
    n: int
    k: int
    blocks: Tensor
    """uint8 [N / 64 rounded up, padded K / 128, bytes of a block]; of weights that do not fold [N, bytes of a row]."""
    base: Tensor
    """The factors of sums, f32 [N], or [N, K / 128 rounded up]."""

    def values(self) -> Tensor:
        """The weights, float64 [N, K], as the op takes them: rounded ones of nvfp4."""
        is_folded = self.blocks.dim() == 3
        operand = self._of_blocks() if is_folded else parted(self.blocks, self.format, self.k).values()
        base = self.base.double()
        if base.dim() == 1:
            return operand * base[:, None]
        return operand * base.repeat_interleave(BLOCK_COLUMNS, 1)[:, : self.k]

    def _of_blocks(self) -> Tensor:
        values = torch.empty(self.n, self.k, dtype=torch.float64, device=self.blocks.device)
        for tiles in chunks(self.blocks.shape[0], SIDE * BLOCK_COLUMNS * self.blocks.shape[1]):
            rows, part = slice(tiles.start * SIDE, tiles.stop * SIDE), self.blocks[tiles]
            codes = decode(_codes_of(part[..., :CODE_BYTES]), E2M1, torch.float64)
            scales = _scale_values(_scales_of(part[..., CODE_BYTES:]), self.format)
            operand = (grouped(codes, self.format.group) * scales[..., None]).flatten(-2)
            if self.format == NVFP4:
                operand = decode(encode(operand.float(), E4M3), E4M3, torch.float64)
            values[rows] = operand[: self.n - rows.start, : self.k]
        return values


def rounded_rows(blocks: Tensor) -> Tensor:
    """The operands of nvfp4's blocks, float8_e4m3fn [N, K] in rows, both as padded: code * scale rounded as the kernel rounds it.

    blocks: uint8 [N / 64, K / 128, 4608]. It takes the time of some passes over the weights, and memory for a part of them.
    """
    tiles, columns = blocks.shape[:2]
    # tile, warp, half of 16 rows, row; block, half, step, half of 32 columns, quad: four operands in a word
    words = torch.empty(tiles, 4, 2, 8, columns, 2, 2, 2, 4, dtype=torch.int32, device=blocks.device)
    table, shifts = _pairs(blocks.device)
    for part in chunks(tiles, SIDE * BLOCK_COLUMNS * columns):
        count = part.stop - part.start
        codes = blocks[part, :, :CODE_BYTES].reshape(count, columns, 2, 4, 8, 4, 2, 2, 4)
        scales = blocks[part, :, CODE_BYTES:].reshape(count, columns, 4, 8, 2, 2, 2, 2)
        # in the order of codes: block, half, warp, row, [quad], step, half of 16 rows, half of 32 columns
        scales = scales.permute(0, 1, 5, 2, 3, 6, 4, 7).contiguous().int() << 7
        scales = scales[:, :, :, :, :, None, ..., None]
        index = (codes & 0x77).unflatten(-1, (2, 2)) + scales
        magnitudes = table.index_select(0, index.flatten()).view(torch.int32).view(index.shape[:-1])
        signs = codes.view(torch.int32) << shifts & _SIGNS
        torch.bitwise_or(magnitudes, signs, out=words[part].permute(0, 4, 5, 1, 3, 8, 6, 2, 7))
    return words.view(E4M3_DTYPE).view(tiles * SIDE, columns * BLOCK_COLUMNS)


@cache
def _pairs(device: torch.device) -> tuple[Tensor, Tensor]:
    """Two operands' magnitudes as an int16, by 128 * byte of the scale + byte of two magnitudes of codes; and the shifts that
    bring the signs of a word's first and last four codes to the sign bits of a word of operands."""
    codes = decode(torch.arange(8, dtype=torch.uint8, device="cpu"), E2M1)
    scales = _scale_values(torch.arange(256, dtype=torch.int64, device="cpu"), NVFP4).float()
    operands = encode(scales[:, None] * codes, E4M3).short()
    pairs = torch.zeros(256, 8, 16, dtype=torch.int16, device="cpu")
    pairs[:, :, :8] = operands[:, None, :] | operands[:, :, None] << 8
    return pairs.flatten().to(device), torch.tensor([0, 4], dtype=torch.int32, device=device)


def _scale_values(bytes_: Tensor, format: Format) -> Tensor:
    if format == MXFP4:
        return torch.exp2((bytes_ & ~LISTED).double() / 8 + LEAST_SHIFT)
    return torch.exp2((bytes_ >> 3).double() - NVFP4_BIAS) * (1 + (bytes_ & 7).double() / 8)


def in_words(codes: Tensor) -> Tensor:
    """The codes [rows, K] as bytes [rows / 64, K / 128, 4096]."""
    tiles, blocks = codes.shape[0] // SIDE, codes.shape[1] // BLOCK_COLUMNS
    # tile, warp, half of 16 rows, row; block, half, step, half of 32 columns, quad, column
    split = codes.view(tiles, 4, 2, 8, blocks, 2, 2, 2, 4, 4)
    words = split.permute(0, 4, 5, 1, 3, 8, 6, 2, 7, 9).reshape(-1, 8)
    magnitude, sign = words & 7, words >> 3
    bytes_ = magnitude[:, 0::2] | magnitude[:, 1::2] << 4 | sign[:, :4] << 7 | sign[:, 4:] << 3
    return bytes_.reshape(tiles, blocks, CODE_BYTES)


def _codes_of(words: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks = words.shape[:2]
    bytes_ = words.reshape(-1, 4)
    codes = bytes_.new_empty(len(bytes_), 8)
    codes[:, 0::2], codes[:, 1::2] = bytes_ & 7, bytes_ >> 4 & 7
    codes[:, :4] |= bytes_ >> 7 << 3
    codes[:, 4:] |= (bytes_ >> 3 & 1) << 3
    split = codes.view(tiles, blocks, 2, 4, 8, 4, 2, 2, 2, 4)
    return split.permute(0, 3, 7, 4, 1, 2, 6, 8, 5, 9).reshape(tiles * SIDE, blocks * BLOCK_COLUMNS)


def in_pairs(scales: Tensor, of_block: int) -> Tensor:
    """Scales [rows, groups], so many of a row in a block, as bytes [rows / 64, K / 128, scales of a block]."""
    tiles, blocks = scales.shape[0] // SIDE, scales.shape[1] // of_block
    split = scales.view(tiles, 4, 2, 8, blocks, of_block)
    return split.permute(0, 4, 1, 3, 2, 5).reshape(tiles, blocks, SIDE * of_block)


def _scales_of(pairs: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks, of_tile = pairs.shape
    split = pairs.reshape(tiles, blocks, 4, 8, 2, of_tile // SIDE)
    return split.permute(0, 2, 4, 3, 1, 5).reshape(tiles * SIDE, blocks * (of_tile // SIDE))
