"""The analytic model that chooses the number of slices of a sequence's tokens.

It mirrors kernels/kv_cache/model.cpp. A block takes a tile of query rows and a run of slices of the tokens, stage by stage.
Blocks run in rounds, and a last launch adds up the slices. Constants are fitted to times of an H200
(docs/notes/kv_cache.md). Tables of measured shapes have the last word.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall


class RowFacts(NamedTuple):
    """The inputs of the model for a variant; zeros where it does not attend. Mirrors `Facts` in
    kernels/kv_cache/model.h.
    """

    half_waves: int = 0
    """Halves of the device's blocks that slices are to fill."""
    most_narrow: int = 0
    """Flat rows up to which tiles are narrow. Flat rows are query rows times query heads of a KV head."""
    narrow_rows: int = 0
    wide_rows: int = 0
    narrow_tokens: int = 0
    """Tokens of a narrow tile's stage, times heads."""
    wide_tokens: int = 0
    heads: int = 0
    """KV heads of a block, at most."""
    blocks_of_sm: int = 0
    narrow_ps: int = 0
    """Picoseconds of a narrow tile's stage."""
    wide_ps: int = 0
    start_ps: int = 0
    """Picoseconds of a block apart from its stages."""
    slice_ps: int = 0
    """Picoseconds that it takes to add a slice to the others."""
    slices: int = 0
    """Slices of each sequence, whatever the batch; 0: as many as half waves say."""
    sum_ps: int = 0
    """Picoseconds in which a block sums a slice before its next one; 0 where blocks take no runs of slices."""


def slices_of(tiles: int, stages: int, blocks: int, half_waves: int, fixed: int = 0) -> int:
    """How many slices the tokens of each of `tiles` tiles are dealt out in, on a device that holds `blocks` blocks; `fixed`
    where it is not 0."""
    return fixed or min(max(half_waves * blocks // (2 * max(tiles, 1)), 1), max(stages, 1))


class Deal(NamedTuple):
    """How a tile's stages are dealt out. Mirrors `Deal` in kernels/kv_cache/slices.h."""

    slices: int
    blocks: int
    """Blocks that share a tile's slices in runs. They decide nothing but time."""
    least: int
    """The fewest stages of a slice."""


LEAST_STAGES = 8
"""Stages of a fixed slice, at least: each slice costs its block a sum of all warps."""
START_STAGES = 12
"""Stages in whose time a block starts and ends."""
SUM_STAGES = 1
"""Stages in whose time a block sums up a slice."""


def deal_of(tiles: int, stages: int, capacity: int, half_waves: int, fixed: int = 0) -> Deal:
    """The slices of each of `tiles` tiles of `stages` stages, and the fewest blocks of the least time that share them.

    A device holds `capacity` blocks at a time. Without `fixed` slices each has a block.
    """
    if not fixed:
        slices = slices_of(tiles, stages, capacity, half_waves)
        return Deal(slices, slices, 1)
    of_slice = max(-(-stages // fixed), LEAST_STAGES)
    filled = max(-(-stages // of_slice), 1)

    def cost(blocks: int) -> int:
        return -(-tiles * blocks // capacity) * (-(-filled // blocks) * (of_slice + SUM_STAGES) + START_STAGES)

    return Deal(fixed, min(range(1, filled + 1), key=cost), LEAST_STAGES)


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call. It is 0 for a call that is no attention, where nothing is to be chosen."""
    facts: RowFacts = row.facts
    if facts.half_waves == 0:
        return 0.0
    batch, rows, query_heads, kv_heads, length = call.sizes
    kv_heads = max(kv_heads, 1)
    flat = rows * (query_heads // kv_heads)
    is_wide, heads = flat > facts.most_narrow, 1
    while heads < facts.heads and kv_heads % (2 * heads) == 0:
        heads *= 2
    tiles = batch * (kv_heads // heads) * -(-flat // (facts.wide_rows if is_wide else facts.narrow_rows))
    stages = -(-length // ((facts.wide_tokens if is_wide else facts.narrow_tokens) // heads))
    capacity = sm_count * facts.blocks_of_sm
    stage_ps = facts.wide_ps if is_wide else facts.narrow_ps
    if facts.sum_ps:
        slices, blocks, least = deal_of(tiles, stages, capacity, facts.half_waves, facts.slices)
        of_slice = max(-(-stages // slices), least)
        slices = max(-(-stages // of_slice), 1)
        of_block = -(-slices // blocks)
        of_all = min(of_block * of_slice, stages)
    else:
        slices = blocks = slices_of(tiles, stages, capacity, facts.half_waves, facts.slices)
        of_all, of_block = -(-stages // slices), 1
    rounds = -(-tiles * blocks // capacity)
    block = float(of_all) * float(stage_ps) + float(facts.start_ps + max(of_block - 1, 0) * facts.sum_ps)
    return (float(rounds) * block + float(slices) * float(facts.slice_ps)) / 1000.0
