"""Which kernels there can be."""

from collections.abc import Iterator

from gemmill.families.fused_moe.config import (
    APART_TILE,
    CODED,
    FINE_GROUP,
    STREAMED_TILES,
    TILES,
    AnyConfig,
    ExpertsConfig,
    PackedExpertsConfig,
)
from gemmill.vocab import Arch


def _hopper(c: AnyConfig) -> Iterator[str]:
    """Kernels begin while others end, and their warps multiply. No other architecture has run them."""
    if c.arch is not Arch.SM90A:
        yield f"fused experts are written for sm90a, not for {c.arch}"


def _operands(c: ExpertsConfig) -> Iterator[str]:
    """An instruction multiplies operands of one type, and only codes have scales."""
    if c.dtype is not CODED and c.dtype is not c.out_dtype:
        yield f"weights of {c.dtype} are multiplied by activations of {c.dtype}, not of {c.out_dtype}"
    if c.dtype is not CODED and c.group_size:
        yield f"weights of {c.dtype} have no scales, in groups or not"


def _tile(c: ExpertsConfig) -> Iterator[str]:
    """An instruction takes eight rows of activations, or more where weights are streamed.

    A lane has the scale of one row, so a tile of warps has at most 32. A thread's sums lie in registers: a streamed tile has at most 64.
    """
    tiles = STREAMED_TILES if c.streamed else (APART_TILE,) if c.apart else TILES
    if c.tile_tokens not in tiles:
        kind = "streamed " * c.streamed + "apart " * c.apart
        yield f"{kind}tile of {c.tile_tokens} rows: there are {', '.join(map(str, tiles))}"


def _streamed(c: ExpertsConfig) -> Iterator[str]:
    """The tensor core's sums of e4m3 are added every 128 along K, with a scale each."""
    if c.streamed and not c.group_size:
        yield f"streamed weights of {c.dtype} without scales in groups: sums are added with their scales"


def _fine(c: ExpertsConfig) -> Iterator[str]:
    """Kernels of experts have stages of a whole group of 128 and one scale of it."""
    if c.group_size == FINE_GROUP and not c.apart:
        yield f"scales in groups of {FINE_GROUP}: grouped GEMMs multiply them (apart=True)"


RULES = (_hopper, _operands, _tile, _streamed, _fine)


def _packed_tile(c: PackedExpertsConfig) -> Iterator[str]:
    """Sums of a tile lie in a warp's registers, or in those of 128 threads."""
    if c.tile_tokens not in c.tiles:
        yield f"{'wide ' * c.wide}{'ordered ' * c.ordered}tile of {c.tile_tokens} rows: there are {', '.join(map(str, c.tiles)) or 'none'}"


PACKED_RULES = (_hopper, _packed_tile)
