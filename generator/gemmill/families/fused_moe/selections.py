"""The kernels of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.fused_moe.config import (
    CODED,
    GROUP,
    TILES,
    AnyConfig,
    ExpertsConfig,
    PackedExpertsConfig,
)
from gemmill.families.fused_moe.packing import PACKINGS
from gemmill.vocab import Arch, DType

_PACKED = {
    "nvfp4": ("8", "8w", "32", "64", "128"),
    "mxfp4": ("8", "32", "128"),
    "nvfp4_2to4": ("8", "8w", "32"),
    "mxfp4_e4m3": ("16", "32", "128"),
}
"""Tiles of packed weights in the default selection, by their rows, "w" of wide ones. The model chooses no others."""


def default(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels of sm90a. e4m3 to bf16 has both kinds of scales with tiles of 8, 16 and 32 rows; bf16 has 8 and 32.

    Of packed weights there are the tiles that the model chooses.
    """
    yield from plain(arch)
    for config in packed(arch):
        if f"{config.tile_tokens}{'w' * config.wide}" in _PACKED.get(str(config.packing), ()):
            yield config


def plain(arch: Arch) -> Iterator[ExpertsConfig]:
    """Kernels of weights that are not packed."""
    if arch is not Arch.SM90A:
        return
    for group, tile in product((GROUP, 0), TILES):
        yield ExpertsConfig(dtype=CODED, out_dtype=DType.BF16, group_size=group, tile_tokens=tile, arch=arch)
    for tile in (TILES[0], TILES[-1]):
        yield ExpertsConfig(dtype=DType.BF16, out_dtype=DType.BF16, tile_tokens=tile, arch=arch)


def smoke(arch: Arch) -> Iterator[ExpertsConfig]:
    """The kernel of scales in groups with the smallest tile."""
    yield from (config for config in plain(arch) if config.group_size and config.tile_tokens == TILES[0])


def sweep(arch: Arch) -> Iterator[AnyConfig]:
    """All kernels: every tile of packed weights, too (docs/notes/experts.md)."""
    yield from plain(arch)
    yield from packed(arch)


def packed(arch: Arch) -> Iterator[PackedExpertsConfig]:
    """Kernels of packed 4-bit weights on sm90a: every tile of each packing."""
    for packing in PACKINGS if arch is Arch.SM90A else ():
        activations = CODED if packing.is_coded else DType.BF16
        of_kind = PackedExpertsConfig(
            format=packing.format, sparse_group=packing.sparse_group, activations=activations, tile_tokens=16, arch=arch
        )
        for kind in (of_kind, replace(of_kind, wide=True)):
            for tile in kind.tiles:
                yield replace(kind, tile_tokens=tile)
