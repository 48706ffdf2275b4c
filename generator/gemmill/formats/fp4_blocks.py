"""The order in which Hopper's kernel of 4-bit weights reads them: blocks of 64 rows and 64 columns, along K first.

    block     2048 bytes of codes, 16 for each of 128 threads; then scales, 256 bytes of nvfp4 or 128 of mxfp4
    thread    warp * 32 + row % 8 * 4 + pair of columns: rows 16 warp + row and that + 8, columns 2 pair, + 1, + 8, + 9 of each
              step of 16, which are its part of operand A of a tensor core's m64k16
    word      4 bytes, little-endian, for each of four steps: eight codes, their bits where BITS says
    scales    of rows r and r + 8 (r % 16 < 8) side by side, r in order; of a row those of columns 0, 32, 16 and 48 (nvfp4), or
              0 and 32: two that are used together lie two bytes apart
    padding   N to 64 and K to a stage's multiple: codes and scales zero

nvfp4's scales get five bits of exponent and three of mantissa, 2^(exponent - 10) * 1.mantissa, in which subnormal numbers of
ue4m3 are normal. Zero is not one: its codes become zeros. mxfp4's stay ue8m0, at most 2 relative to the row's base, since the
kernel multiplies code * 2^-126 by 2^126 * scale.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gemmill.formats.codes import pack
from gemmill.formats.layout import SIDE
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.float_type import UE4M3
from gemmill.vocab.format import NVFP4, Format

CODE_BYTES = SIDE * SIDE // 2
"""Bytes of a block's codes."""
CHUNK = 1 << 24
"""The number of weights in one pass, so that memory is bounded."""
_WORDS_AT_ONCE = 1 << 18
"""Words of 16 codes in one pass."""
_SIGN, _HIGH, _MIDDLE, _LOW = 3, 2, 1, 0
"""The numbers of a code's bits."""


def _bits() -> Iterator[tuple[int, int, int]]:
    """Of two words, the even step's and the odd one's: code 0 to 15, bit of it, and where of 64 bits it lies."""
    plain = {
        0: {_SIGN: 15, _HIGH: 8, _MIDDLE: 7, _LOW: 6},
        1: {_SIGN: 5, _HIGH: 14, _MIDDLE: 13, _LOW: 12},
        2: {_SIGN: 11, _HIGH: 4, _MIDDLE: 3, _LOW: 2},
    }
    for half in (0, 1):
        same, other = 16 * half, 16 * (1 - half)
        for step in (0, 1):
            for pair, places in plain.items():
                for bit, place in places.items():
                    in_half = other if (pair, bit) == (1, _SIGN) else same
                    yield 8 * step + 2 * pair + half, bit, 32 * step + in_half + place
        even, odd = 6 + half, 14 + half
        yield from ((even, _SIGN, same + 9), (even, _MIDDLE, same + 1), (even, _LOW, same), (even, _HIGH, 32 + same))
        yield from ((odd, _HIGH, 32 + same + 10), (odd, _MIDDLE, 32 + same + 9), (odd, _LOW, same + 10))
        yield odd, _SIGN, 32 + other + 1


BITS = tuple(_bits())
"""Where each bit of a thread's 16 codes of two steps lies: code 8 step + 2 pair + parity of the column, bit of the code, bit
of the 64. Pairs of columns are (row, first 8), (row + 8, first 8), (row, last 8), (row + 8, last 8)."""


def _five_bit_exponents() -> tuple[int, ...]:
    """The kernel's byte of each ue4m3 number."""
    halves = [math.frexp(UE4M3.value(code)) for code in range(UE4M3.last_code + 1)]
    return tuple((exponent + 9) << 3 | int(16 * fraction) & 7 if fraction else 0 for fraction, exponent in halves)


SCALE_BYTES = _five_bit_exponents()


@dataclass(frozen=True, kw_only=True)
class Fp4Blocks:
    """4-bit weights [N, K] as the kernel reads them."""

    format: Format
    """The format of the weights, nvfp4 or mxfp4."""
    n: int
    k: int
    blocks: Tensor
    """uint8 [N / 64 rounded up, padded K / 64, bytes of a block]."""
    base: Tensor
    """The factors f32 [N] by which the epilogue multiplies rows of weights; ones for nvfp4."""

    def weights(self) -> tuple[BlockScaled, Tensor]:
        """Codes and scales in a checkpoint's order, and bases [N]: the inverse of `to_blocks`.

        The weights are the same. Codes of nvfp4 groups whose scale is zero are zeros, and mxfp4's scales are on these bases.
        """
        codes = torch.empty(self.n, self.format.code_bytes(self.k), dtype=torch.uint8, device=self.blocks.device)
        scales = codes.new_empty(self.n, self.format.scale_count(self.k))
        table = table_of({new: old for old, new in enumerate(SCALE_BYTES)}, codes.device)
        for tiles in chunks(self.blocks.shape[0], SIDE * SIDE * self.blocks.shape[1]):
            rows = slice(tiles.start * SIDE, tiles.stop * SIDE)
            part = self.blocks[tiles]
            codes[rows] = pack(codes_of(part[..., :CODE_BYTES]), 4)[: self.n - rows.start, : codes.shape[1]]
            of_rows = scales_of(part[..., CODE_BYTES:])[: self.n - rows.start, : scales.shape[1]]
            scales[rows] = table[of_rows.long()] if self.format == NVFP4 else of_rows
        return BlockScaled(format=self.format, codes=codes, scales=scales), self.base


@cache
def _words_of_bytes() -> Tensor:
    """Of each of a thread's eight bytes of codes, columns 2 pair and + 1, the bits of its 64 that each value of the byte sets: int64
    [8, 256] on the CPU."""
    words = [[0] * 256 for _ in range(8)]
    for code, bit, place in BITS:
        for byte in range(256):
            if byte >> (4 * (code % 2) + bit) & 1:
                words[code // 2][byte] |= 1 << place
    signed = [[word - (word >> 63 << 64) for word in of_byte] for of_byte in words]
    return torch.tensor(signed, dtype=torch.int64, device="cpu")


def in_words(codes: Tensor) -> Tensor:
    """The codes [rows, K], two in a byte, as bytes [rows / 64, K / 64, 2048].

    It looks the bits of many bytes up in one pass, for passes are launches, and adds those of each word. A byte takes 16 bytes
    meanwhile, so passes are bounded.
    """
    tiles, blocks = codes.shape[0] // SIDE, 2 * codes.shape[1] // SIDE
    table = _words_of_bytes().to(codes.device)
    # tile, warp, half of 16 rows, row; block, two steps, step, half of 16 columns, pair of columns
    split = codes.reshape(tiles, 4, 2, 8, blocks, 2, 2, 2, 4)
    of_words = split.permute(0, 4, 1, 3, 8, 5, 6, 7, 2).reshape(-1, len(table))
    words = table.new_empty(len(of_words))
    first = torch.arange(len(table), dtype=torch.int64, device=codes.device) * table.shape[1]
    for start in range(0, len(words), _WORDS_AT_ONCE):
        part = slice(start, start + _WORDS_AT_ONCE)
        places = of_words[part].long().add_(first)
        torch.sum(table.flatten()[places], dim=1, out=words[part])  # no two bytes set the same bit
    return words.view(torch.uint8).reshape(tiles, blocks, CODE_BYTES)


def codes_of(words: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks = words.shape[:2]
    bytes_ = words.reshape(tiles, blocks, 128, 2, 8)
    threads = bytes_.new_zeros(tiles, blocks, 128, 2, 16)
    for code, bit, place in BITS:
        threads[..., code] |= (bytes_[..., place // 8] >> place % 8 & 1) << bit
    split = threads.view(tiles, blocks, 4, 8, 4, 2, 2, 2, 2, 2)
    return split.permute(0, 2, 8, 3, 1, 5, 6, 7, 4, 9).reshape(tiles * SIDE, blocks * SIDE)


def in_pairs(scales: Tensor, of_row: int) -> Tensor:
    """Scales [rows, groups], so many to a row of a block, as bytes [rows / 64, K / 64, scales of a block]."""
    tiles, blocks = scales.shape[0] // SIDE, scales.shape[1] // of_row
    # tile, warp, half of 16 rows, row; block, half of its columns, scale
    split = scales.view(tiles, 4, 2, 8, blocks, 2, of_row // 2)
    return split.permute(0, 4, 1, 3, 2, 6, 5).reshape(tiles, blocks, SIDE * of_row)


def scales_of(pairs: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks, of_block = pairs.shape
    split = pairs.reshape(tiles, blocks, 4, 8, 2, of_block // SIDE // 2, 2)
    return split.permute(0, 2, 4, 3, 1, 6, 5).reshape(tiles * SIDE, blocks * (of_block // SIDE))


def table_of(bytes_: dict[int, int], device: torch.device) -> Tensor:
    """The byte that each byte becomes, uint8 [256]."""
    return torch.tensor([bytes_.get(byte, 0) for byte in range(256)], dtype=torch.uint8, device=device)


def chunks(count: int, weights: int) -> Iterator[slice]:
    """Slices of `count` things of so many weights each, about CHUNK weights at a time."""
    step = max(CHUNK // max(weights, 1), 1)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))
