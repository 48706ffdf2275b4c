"""The analytic model that chooses among variants without measurements. Mirrors kernels/blockscaled/model.cpp.

CTAs come in waves, as many at a time as a device has room for. The rest comes last: it takes its share of a wave, where
CTAs of a multiprocessor end one after another, or has multiprocessors to itself (`left_permille`). A turn fills its stages, goes through its steps, and adds up partial sums. Two things limit a call: the steps, which
upcast and multiply codes, and memory. Part of the lesser is not hidden. On Hopper the constants are fitted to times of
an H200 (docs/notes/blockscaled.md). On Blackwell they are predictions from the peak of its tensor core. Tables of
measured shapes have the last word.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

MOST_CTAS = 2**30
"""Most CTAs of a call: kernels count them in 32 bits, some past the last."""
_BEGIN_NS, _UNHIDDEN = 8.0, 0.0021
"""Nanoseconds to launch, and the part of the lesser limit that is not hidden."""
_FILL_NS, _FILL_SHARED_NS = 2806.0, 800.6
"""Nanoseconds of a turn until its first stages are there: for a CTA alone on a multiprocessor, and for each of those
that share one.
"""
_MEETING_NS = (0.0, 0.0, 922.0, 1423.0, 1478.0, 2055.0, 2400.0, 2861.0, 1950.0)
"""Nanoseconds of a turn until the CTAs of a cluster have met, by the number of its slices of K."""
_SUM_NS, _SUM_OF_SLICES_NS = 0.0462, 0.1377
"""Nanoseconds for each sum of a tile: where K is whole, and where its slices meet in a cluster's shared memory."""
_REACHED = (
    (0, 1000, 1000, 864, 900, 820, 850, 820, 900),
    (0, 1000, 1000, 900, 940, 909, 900, 860, 940),
)
"""Permille of the multiprocessors that clusters reach at a time, by the CTAs of a cluster: first of kernels that have a
multiprocessor alone, then of those that share one. A cluster lies within a group of 16 or 18, in pairs."""
_L2 = 46294.0
"""Bytes a nanosecond at which every column of tiles reads activations again."""


class RowFacts(NamedTuple):
    """Facts of a variant. Mirrors `Facts` in kernels/blockscaled/model.h."""

    splits: int
    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    sms: int
    """Multiprocessors that multiply a tile together."""
    ctas_of_sm: int
    """CTAs that fit on a multiprocessor."""
    step_columns: int
    """Columns of a step along K."""
    step_ps: int
    """Picoseconds for a step of a CTA alone on a multiprocessor."""
    shared_permille: int
    """Permille of `step_ps` that a step takes for each of the CTAs that share a multiprocessor, where as many do as fit."""
    left_permille: int
    """Permille of the time of the last CTAs, more than their share of a wave, that no other CTAs hide."""
    a_bits: int
    """Sixteenths of a bit that an element of A takes, with its part of a scale."""
    b_bits: int
    memory: int
    """Bytes that a nanosecond reads."""
    k_multiple: int
    """The number that K must be a multiple of."""


def ctas_of(facts: RowFacts, m: int, n: int) -> int:
    """CTAs of a call; several multiprocessors that share a tile count as one."""
    return -(-m // facts.tile_m) * -(-n // facts.tile_n) * facts.splits


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: RowFacts = row.facts
    ctas, sms = ctas_of(facts, m, n), max(sm_count // facts.sms, 1)
    sms = max(sms * _REACHED[facts.ctas_of_sm > 1][facts.splits] // 1000, 1)
    on_sm = min(facts.ctas_of_sm, -(-ctas // sms))
    turns, left = divmod(ctas, sms * on_sm)
    of_turn = _turn_ns(facts, k, on_sm)
    working = float(turns) * of_turn
    if left:
        alone = _turn_ns(facts, k, -(-left // sms))
        part = of_turn * float(left) / float(sms * on_sm)
        working += alone if turns == 0 else part + float(facts.left_permille) / 1000.0 * (alone - part)
    of_a, of_b = float(m) * float(k) * float(facts.a_bits) / 128.0, float(n) * float(k) * float(facts.b_bits) / 128.0
    again = of_a * float(-(-n // facts.tile_n)) / _L2
    memory = (of_a + of_b + 2.0 * float(m) * float(n)) / float(facts.memory) + again
    return _BEGIN_NS + max(working, memory) + _UNHIDDEN * min(working, memory)


def _turn_ns(facts: RowFacts, k: int, on_sm: int) -> float:
    """Of CTAs of which so many share a multiprocessor. A step takes each no less time than a CTA alone, and evenly more
    with each other CTA.
    """
    all_steps = -(-k // facts.step_columns)
    steps = -(-all_steps // facts.splits)
    step = float(facts.step_ps)
    each = step / 1000.0
    if on_sm > 1:
        of_all = max(each, float(facts.ctas_of_sm * facts.shared_permille) * step / 1e6)
        each += (of_all - each) * float(on_sm - 1) / float(facts.ctas_of_sm - 1)
    fill = _FILL_NS if on_sm == 1 else float(on_sm) * _FILL_SHARED_NS
    of_sum = _SUM_NS if facts.splits == 1 else _SUM_OF_SLICES_NS
    return fill + float(steps) * each + _MEETING_NS[facts.splits] + of_sum * float(facts.tile_m * facts.tile_n)


def refuses(row: Row, call: ShapedCall) -> str | None:
    """Why a variant takes no call of such sizes, apart from the limits in its row."""
    m, n, k = call.sizes
    if (ctas := ctas_of(row.facts, m, n)) > MOST_CTAS:
        return f"it would take {ctas} CTAs for M, N = {m}, {n}, and counts up to {MOST_CTAS}"
    if k % row.facts.k_multiple:
        return f"its loads take K in multiples of {row.facts.k_multiple}, and K is {k}"
    return None
