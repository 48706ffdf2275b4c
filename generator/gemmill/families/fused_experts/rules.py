"""Which kernels there can be."""

from collections.abc import Iterator

from gemmill.families.fused_experts.config import (
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
    """Groups of 128 threads multiply with WGMMA, which no later architecture has, and warps with `mma.sync`."""
    by_warps = _by_warps(c) if isinstance(c, PackedExpertsConfig) else not (c.streamed or c.apart)
    if c.arch is not Arch.SM90A and not (by_warps and c.arch is Arch.SM120F):
        yield f"fused experts are written for sm90a, not for {c.arch}"


def _by_warps(c: PackedExpertsConfig) -> bool:
    return c.tile_tokens in c.tiles and c.by_warps


def _operands(c: ExpertsConfig) -> Iterator[str]:
    """An instruction multiplies operands of one type, and only codes have scales."""
    if c.dtype is not CODED and c.dtype is not c.out_dtype:
        yield f"weights of {c.dtype} are multiplied by activations of {c.dtype}, not of {c.out_dtype}"
    if c.dtype is not CODED and c.group_size:
        yield f"weights of {c.dtype} have no scales, in groups or not"


def _tile(c: ExpertsConfig) -> Iterator[str]:
    """An instruction takes eight rows of activations, or more with streamed weights.

    A lane has the scale of one row, so a tile of warps has at most 32. A thread's sums lie in registers: a streamed tile has at most 64.
    """
    tiles = STREAMED_TILES if c.streamed else (APART_TILE,) if c.apart else TILES
    if c.tile_tokens not in tiles:
        kind = "streamed " * c.streamed + "apart " * c.apart
        yield f"{kind}tile of {c.tile_tokens} rows: there are {', '.join(map(str, tiles))}"


def _streamed(c: ExpertsConfig) -> Iterator[str]:
    """The kernel adds the tensor core's sums of e4m3 every 128 along K, with a scale each."""
    if c.streamed and not c.group_size:
        yield f"streamed weights of {c.dtype} without scales in groups: sums are added with their scales"


def _memory(c: ExpertsConfig) -> Iterator[str]:
    """Eight warps have stages of 4,096 bytes of weights each, with rows and scales of activations: of 32 rows two do not fit."""
    if c.arch is Arch.SM120F and c.tile_tokens > TILES[1]:
        yield f"tile of {c.tile_tokens} rows on {c.arch}: two stages do not fit in {c.arch.shared_memory_bytes} bytes; {TILES[1]} rows do"


def _fine(c: ExpertsConfig) -> Iterator[str]:
    """Kernels of experts have stages of a whole group of 128 and one scale of it."""
    if c.group_size == FINE_GROUP and not c.apart:
        yield f"scales in groups of {FINE_GROUP}: grouped GEMMs multiply them (apart=True)"


RULES = (_hopper, _operands, _tile, _streamed, _memory, _fine)


def _packed_tile(c: PackedExpertsConfig) -> Iterator[str]:
    """Sums of a tile lie in a warp's registers, or in those of 128 threads."""
    if c.tile_tokens not in c.tiles:
        yield f"{c.main_loop} tile of {c.tile_tokens} rows: there are {', '.join(map(str, c.tiles)) or 'none'}"


PACKED_RULES = (_hopper, _packed_tile)
