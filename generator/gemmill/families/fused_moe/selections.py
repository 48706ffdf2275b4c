"""The kernels of the named selections."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.fused_moe.config import CODED, GROUP, TILES, ExpertsConfig
from gemmill.vocab import Arch, DType


def default(arch: Arch) -> Iterator[ExpertsConfig]:
    """On sm90a: of e4m3 to bf16 both kinds of scales with tiles of 8, 16 and 32 rows, and of bf16 the smallest and the largest."""
    if arch is not Arch.SM90A:
        return
    for group, tile in product((GROUP, 0), TILES):
        yield ExpertsConfig(dtype=CODED, out_dtype=DType.BF16, group_size=group, tile_tokens=tile, arch=arch)
    for tile in (TILES[0], TILES[-1]):
        yield ExpertsConfig(dtype=DType.BF16, out_dtype=DType.BF16, tile_tokens=tile, arch=arch)


def smoke(arch: Arch) -> Iterator[ExpertsConfig]:
    """Of scales in groups, the smallest tile."""
    yield from (config for config in default(arch) if config.group_size and config.tile_tokens == TILES[0])
