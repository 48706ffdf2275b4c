"""The order in which Hopper's kernels of 2:4 sparse nvfp4 weights read them: blocks of 64 rows and 64 columns, along K first.

    block     1024 bytes of kept codes, 8 for each of 128 threads; 512 of places, 4 for each; then scales, 256 bytes, or 512 where
              8 columns share one
    codes     those of a dense block (`gemmill.formats.fp4_blocks`) of 32 kept columns: two instructions of 32 columns
    places    of four threads of a row the first two have those of the first instruction, of 16 columns each, the others those of the
              second: 16 bits of row 16 warp + row, then 16 of that + 8; a nibble for each four columns, first | second << 2
    scales    as of a dense block; where 8 columns share one, those of the first 8 of each 16 columns, then those of the last
    padding   N to 64 and K to a stage's multiple: codes and scales zero, places 0 and 1

A row's base is the `weight_scale_2` of its part. Pruned zeros are neither stored nor made.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.codes import pack
from gemmill.formats.fp4_blocks import SCALE_BYTES, codes_of, in_pairs, in_words, scales_of, table_of
from gemmill.formats.layout import SIDE
from gemmill.formats.sparse_fp4 import SCALE_GROUPS, SparseFp4, packed_patterns
from gemmill.formats.two_to_four import GROUP

CODE_BYTES, PLACE_BYTES = SIDE * SIDE // 4, SIDE * SIDE // 8
"""Of a block."""
LEAST_PLACES = 0 | 1 << 2
"""The nibble of places 0 and 1."""


def block_bytes(group: int) -> int:
    """Bytes of a block whose scales are of so many columns."""
    return CODE_BYTES + PLACE_BYTES + SIDE * SIDE // group


@dataclass(frozen=True, kw_only=True)
class SparseFp4Blocks:
    """2:4 sparse nvfp4 weights [N, K] as kernels read them."""

    n: int
    k: int
    group: int
    """Columns that share a scale: 16 or 8."""
    blocks: Tensor
    """uint8 [N / 64 rounded up, padded K / 64, bytes of a block]."""
    base: Tensor
    """f32 [N]: the factors of rows."""

    def weights(self) -> tuple[SparseFp4, Tensor]:
        """The weights as one expert's, with factors of 1, and bases [N]: the inverse of packing.

        Codes of groups whose scale is zero are zeros.
        """
        codes, places, scales = self.blocks.split([CODE_BYTES, PLACE_BYTES, SIDE * SIDE // self.group], dim=2)
        table = table_of({new: old for old, new in enumerate(SCALE_BYTES)}, self.blocks.device)
        nibbles = _of_place_bytes(places)[: self.n, : self.k // GROUP]
        sparse = SparseFp4(
            codes=pack(_of_kept_words(codes), 4)[None, : self.n, : self.k // GROUP],
            patterns=packed_patterns(torch.stack((nibbles & 3, nibbles >> 2), dim=-1).long())[None],
            scales=table[_of_scale_bytes(scales).long()][None, : self.n, : self.k // self.group],
            weight_scale_2=torch.ones(1, 1, device=self.blocks.device, dtype=torch.float32),
        )
        return sparse, self.base

    def values(self) -> Tensor:
        """The weights without their bases, float64 [N, K]."""
        return self.weights()[0].values(0).double()


def in_kept_words(codes: Tensor) -> Tensor:
    """Kept codes [rows, K / 2] as bytes [rows / 64, K / 64, 1024]."""
    words = in_words(pack(codes, 4))
    tiles, blocks = words.shape[:2]
    return words.view(tiles, blocks, 128, 2, 8).transpose(2, 3).reshape(tiles, 2 * blocks, CODE_BYTES)


def _of_kept_words(words: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks = words.shape[:2]
    return codes_of(words.reshape(tiles, blocks // 2, 2, 128, 8).transpose(2, 3).flatten(2))


def in_place_bytes(nibbles: Tensor) -> Tensor:
    """Nibbles of places [rows, K / 4] as bytes [rows / 64, K / 64, 512]."""
    tiles, blocks = nibbles.shape[0] // SIDE, nibbles.shape[1] * GROUP // SIDE
    # tile, warp, half of 16 rows, row; block, instruction, 16 columns, group
    split = nibbles.view(tiles, 4, 2, 8, blocks, 2, 2, 4)
    threads = split.permute(0, 4, 1, 3, 5, 6, 2, 7).reshape(tiles, blocks, PLACE_BYTES, 2)
    return threads[..., 0] | threads[..., 1] << 4


def _of_place_bytes(bytes_: Tensor) -> Tensor:
    """The inverse."""
    tiles, blocks = bytes_.shape[:2]
    threads = torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).reshape(tiles, blocks, 4, 8, 2, 2, 2, 4)
    return threads.permute(0, 2, 6, 3, 1, 4, 5, 7).reshape(tiles * SIDE, blocks * SIDE // GROUP)


def in_scale_bytes(scales: Tensor, group: int) -> Tensor:
    """Scales [rows, K / group] as bytes [rows / 64, K / 64, scales of a block]."""
    halves = SCALE_GROUPS[0] // group
    return torch.cat([in_pairs(scales[:, half::halves], SIDE // SCALE_GROUPS[0]) for half in range(halves)], dim=2)


def _of_scale_bytes(bytes_: Tensor) -> Tensor:
    """The inverse."""
    halves = bytes_.split(SIDE * SIDE // SCALE_GROUPS[0], dim=2)
    return torch.stack([scales_of(half) for half in halves], dim=2).flatten(1)
