"""The analytic model that chooses the number of slices of a sequence's tokens.

It mirrors kernels/kv_cache/model.cpp. A block takes a tile of query rows and a run of slices of the tokens, stage by stage.
Blocks run in rounds, and a last launch adds up the slices. Kernels of pages and slots deal tokens out on the device, by lengths
that the host does not know (kernels/kv_cache/shared/length_deal.cuh): of those the model takes all sequences as long as the
longest. Constants are fitted to times of an H200 (docs/notes/kv_cache.md). Tables of measured shapes have the last word.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall


class RowFacts(NamedTuple):
    """The inputs of the model for a variant; zeros where it does not attend. Mirrors `Facts` in
    kernels/kv_cache/model.h.
    """

    half_waves: int = 0
    """Halves of the device's blocks that slices are to fill."""
    most_few: int = 0
    """Flat rows up to which a call has few. Flat rows are query rows times query heads of a KV head."""
    few_rows: int = 0
    many_rows: int = 0
    few_tokens: int = 0
    """Tokens of a stage of a tile of few rows, times heads."""
    many_tokens: int = 0
    heads: int = 0
    """KV heads of a block, at most."""
    blocks_of_sm: int = 0
    few_ps: int = 0
    """Picoseconds of a stage of a tile of few rows."""
    many_ps: int = 0
    start_ps: int = 0
    """Picoseconds of a block apart from its stages."""
    slice_ps: int = 0
    """Picoseconds that it takes to add a slice to the others."""
    slices: int = 0
    """Slices of each sequence, whatever the batch; 0: as many as half waves say."""
    sum_ps: int = 0
    """Picoseconds of a block that the sum of a group's slice takes; 0 where groups take no runs of slices."""
    few_groups: int = 0
    """Groups of warps of a block with a tile of few rows, each of which takes a run of fixed slices."""
    many_groups: int = 0


def slices_of(tiles: int, stages: int, blocks: int, half_waves: int, fixed: int = 0) -> int:
    """How many slices the tokens of each of `tiles` tiles are dealt out in, on a device that holds `blocks` blocks; `fixed`
    where it is not 0."""
    return fixed or min(max(half_waves * blocks // (2 * max(tiles, 1)), 1), max(stages, 1))


def parts_of(batch: int, blocks_of_part: int, stages: int, capacity: int, half_waves: int, fixed: int = 0) -> int:
    """How many parts all sequences have at most, where the device deals tokens out by lengths. Mirrors kernels/kv_cache/slices.h."""
    wave = max(half_waves * capacity // (2 * max(blocks_of_part, 1)), 1)
    return min(wave if 2 * batch <= wave else batch + wave - 1, batch * max(min(stages, fixed) if fixed else stages, 1))


class Deal(NamedTuple):
    """How a tile's stages are dealt out. Mirrors `Deal` in kernels/kv_cache/slices.h."""

    slices: int
    blocks: int
    """Blocks that share a tile's slices in runs. They decide nothing but time."""
    least: int
    """The fewest stages of a slice."""


LEAST_STAGES = 8
"""Stages of a fixed slice, at least: each slice costs its group of warps a sum of all of them."""
START_STAGES = 12
"""Stages in whose time a block starts and ends."""
SUM_STAGES = 2
"""Stages in whose time a group sums up a slice."""


DEFAULT_HALF_WAVES = 2
OTHER_SETTING = 1.5
"""Times as long as by the default an attention over several sequences counts by another number of half waves or by one slice each, where
lengths deal tokens out."""
SHORT_STAGES = 5
"""Stages of the longest sequence for each of the device's blocks, at most, where slots are short. Their blocks have several heads. Few short
sequences take one half wave by default, one alone too: more parts are more sums, and of several sequences a second round."""
FEW_TILES = 8
"""The device's blocks for each tile, at least, where sequences are few."""


class Shared(NamedTuple):
    """How the groups of a tile's blocks share its slices. Mirrors `Shared` in kernels/kv_cache/slices.h."""

    run: int
    """Slices of a group, at most."""
    stages_of_stage: int
    """Stages that a block could take while a group takes one: as many as groups are at work, and half of all at least."""


def shared_of(filled: int, blocks: int, groups: int) -> Shared:
    """How `blocks` blocks of `groups` groups share `filled` slices."""
    return Shared(-(-filled // (blocks * groups)), max(min(groups, -(-filled // blocks)), (groups + 1) // 2))


def deal_of(tiles: int, stages: int, capacity: int, half_waves: int, fixed: int = 0, groups: int = 1) -> Deal:
    """The slices of each of `tiles` tiles of `stages` stages, and the fewest blocks of the least time that share them.

    A device holds `capacity` blocks at a time, of `groups` groups of warps that take runs of slices. Without `fixed` slices, and with
    one, a slice has a block.
    """
    if fixed <= 1:
        slices = slices_of(tiles, stages, capacity, half_waves, fixed)
        return Deal(slices, slices, 1)
    of_slice = max(-(-stages // fixed), LEAST_STAGES)
    filled = max(-(-stages // of_slice), 1)

    def cost(blocks: int) -> int:
        run, stages_of_stage = shared_of(filled, blocks, groups)
        return -(-tiles * blocks // capacity) * (run * (of_slice + SUM_STAGES) * stages_of_stage + START_STAGES)

    return Deal(fixed, min(range(1, filled + 1), key=cost), LEAST_STAGES)


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call. It is 0 for a call that is no attention, where nothing is to be chosen."""
    facts: RowFacts = row.facts
    if facts.half_waves == 0:
        return 0.0
    batch, rows, query_heads, kv_heads, length = call.sizes
    kv_heads = max(kv_heads, 1)
    flat = rows * (query_heads // kv_heads)
    has_many, heads = flat > facts.most_few, 1
    while heads < facts.heads and kv_heads % (2 * heads) == 0:
        heads *= 2
    tiles = batch * (kv_heads // heads) * -(-flat // (facts.many_rows if has_many else facts.few_rows))
    stages = -(-length // ((facts.many_tokens if has_many else facts.few_tokens) // heads))
    capacity = sm_count * facts.blocks_of_sm
    stage_ps = facts.many_ps if has_many else facts.few_ps
    if facts.sum_ps and facts.slices <= 1:
        return _by_length_ns(facts, batch, tiles, stages, capacity, stage_ps)
    if facts.sum_ps:
        groups = facts.many_groups if has_many else facts.few_groups
        slices, blocks, least = deal_of(tiles, stages, capacity, facts.half_waves, facts.slices, groups)
        of_slice = max(-(-stages // slices), least)
        slices = max(-(-stages // of_slice), 1)
        run, stages_of_stage = shared_of(slices, blocks, groups)
        of_run, of_all = stages_of_stage * run, stages_of_stage * min(run * of_slice, stages)
    else:
        slices = blocks = slices_of(tiles, stages, capacity, facts.half_waves, facts.slices)
        of_all, of_run = -(-stages // slices), 0
    rounds = -(-tiles * blocks // capacity)
    block = float(of_all) * float(stage_ps) + float(facts.start_ps + of_run * facts.sum_ps)
    return (float(rounds) * block + float(slices) * float(facts.slice_ps)) / 1000.0


def _by_length_ns(facts: RowFacts, batch: int, tiles: int, stages: int, capacity: int, stage_ps: int) -> float:
    """Of one sequence, as many slices as parts. Of several the device decides by lengths that the host does not know: the best number for
    equal ones. Settings other than the default count as slower (docs/notes/kv_cache.md)."""

    def picoseconds(slices: int) -> float:
        block = float(-(-stages // slices)) * float(stage_ps) + float(facts.start_ps)
        return float(-(-tiles * slices // capacity)) * block + float(slices) * float(facts.slice_ps)

    has_heads = facts.heads > 1  # slots have half a wave more of several sequences (slot_attention.cuh)
    is_short = has_heads and stages <= SHORT_STAGES * capacity and FEW_TILES * tiles <= capacity
    is_other = facts.half_waves != (1 if is_short else DEFAULT_HALF_WAVES) or facts.slices > 0
    if batch <= 1:
        found = picoseconds(max(parts_of(1, tiles, stages, capacity, facts.half_waves, facts.slices), 1))
        is_other &= is_short
    else:
        most = parts_of(batch, tiles // batch, stages, capacity, facts.half_waves + has_heads, facts.slices) // batch
        found = min(map(picoseconds, range(1, max(most, 1) + 1)))
    return found * (OTHER_SETTING if is_other else 1.0) / 1000.0
