"""The kernels of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.fused_experts.config import (
    APART_TILE,
    CODED,
    GROUP,
    GROUPS,
    STREAMED_TILES,
    TILES,
    AnyConfig,
    Design,
    ExpertsConfig,
    Operands,
    PackedDesign,
    PackedExpertsConfig,
    PackedOperands,
)
from gemmill.families.fused_experts.main_loop import ExpertLoop
from gemmill.families.fused_experts.packing import PACKINGS
from gemmill.vocab import Arch, DType

_PACKED: dict[str, dict[ExpertLoop, tuple[int, ...]]] = {
    "nvfp4": {ExpertLoop.GATHERED: (8,), ExpertLoop.WIDE: (8,), ExpertLoop.BOXED: (32, 64, 128)},
    "mxfp4": {ExpertLoop.GATHERED: (8, 32, 128)},
    "nvfp4_2to4": {ExpertLoop.GATHERED: (8,), ExpertLoop.WIDE: (8,), ExpertLoop.BOXED: (16, 64)},
    "mxfp4_e4m3": {ExpertLoop.GATHERED: (16,), ExpertLoop.PERSISTENT: (8, 16, 32, 48, 64, 112, 224)},
}
"""Tiles of packed weights in the default selection, by their rows of an expert. The model chooses no others."""
_BY_WARPS: dict[str, dict[ExpertLoop, tuple[int, ...]]] = {
    packing: {ExpertLoop.GATHERED: (8, 16), ExpertLoop.WIDE: (8,)} for packing in ("nvfp4", "mxfp4", "nvfp4_2to4")
}
"""Those of sm120f."""


def default(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels of sm90a, and of packed weights the tiles that the model chooses; on sm120f those by warps."""
    yield from plain(arch)
    kept = _PACKED if arch is Arch.SM90A else _BY_WARPS
    for config in packed(arch):
        if config.tile_tokens in kept.get(str(config.packing), {}).get(config.main_loop, ()):
            yield config


def plain(arch: Arch) -> Iterator[ExpertsConfig]:
    """Kernels of unpacked weights.

    e4m3 to bf16 with scales in groups has streamed tiles of 8 to 64 rows, and one of 8 by warps. With scales of rows it has tiles of 8, 16
    and 32 rows. bf16 has tiles of 8 and 32. Of all, grouped GEMMs may make the products, and of groups of 32 they alone do. On sm120f all
    have tiles of 8 and 16 rows by warps.
    """
    if arch is Arch.SM120F:
        for design in (Design(tile_tokens=tile) for tile in TILES[:2]):
            yield _of_codes(arch, GROUP, design)
            yield _of_codes(arch, 0, design)
            yield _of_16_bits(arch, design)
    if arch is not Arch.SM90A:
        return
    yield from streamed(arch)
    for group, tile in ((GROUP, TILES[0]), *product((0,), TILES)):
        yield _of_codes(arch, group, Design(tile_tokens=tile))
    for tile in (TILES[0], TILES[-1]):
        yield _of_16_bits(arch, Design(tile_tokens=tile))
    apart = Design(tile_tokens=APART_TILE, apart=True)
    for group in (*GROUPS, 0):
        yield _of_codes(arch, group, apart)
    yield _of_16_bits(arch, apart)


def _of_codes(arch: Arch, group: int, design: Design) -> ExpertsConfig:
    operands = Operands(dtype=CODED, out_dtype=DType.BF16, group_size=group)
    return ExpertsConfig(operands=operands, design=design, arch=arch)


def _of_16_bits(arch: Arch, design: Design) -> ExpertsConfig:
    operands = Operands(dtype=DType.BF16, out_dtype=DType.BF16)
    return ExpertsConfig(operands=operands, design=design, arch=arch)


def smoke(arch: Arch) -> Iterator[ExpertsConfig]:
    """The kernel of scales in groups with the smallest tile, by warps."""
    yield from (c for c in plain(arch) if c.group_size and c.tile_tokens == TILES[0] and not c.streamed)


def sweep(arch: Arch) -> Iterator[AnyConfig]:
    """All kernels: larger tiles by warps with scales in groups, and every tile of packed weights, too (docs/notes/fused_experts.md)."""
    yield from plain(arch)
    for tile in TILES[1:] if arch is Arch.SM90A else ():
        yield _of_codes(arch, GROUP, Design(tile_tokens=tile))
    yield from packed(arch)


def streamed(arch: Arch) -> Iterator[ExpertsConfig]:
    """Kernels of sm90a that stream their weights: e4m3 to bf16 with scales in groups, every tile."""
    for tile in STREAMED_TILES if arch is Arch.SM90A else ():
        yield _of_codes(arch, GROUP, Design(tile_tokens=tile, streamed=True))


def packed(arch: Arch) -> Iterator[PackedExpertsConfig]:
    """Kernels of packed 4-bit weights: on sm90a every tile of each packing, on sm120f those by warps."""
    for packing in PACKINGS if arch is not Arch.SM100A else ():
        activations = CODED if packing.is_coded else DType.BF16
        operands = PackedOperands(format=packing.format, sparse_group=packing.sparse_group, activations=activations)
        for loop in ExpertLoop:
            kind = PackedExpertsConfig(
                operands=operands, design=PackedDesign(tile_tokens=16, main_loop=loop), arch=arch
            )
            for tile in kind.tiles:
                config = replace(kind, design=replace(kind.design, tile_tokens=tile))
                if arch is Arch.SM90A or config.by_warps:
                    yield config
