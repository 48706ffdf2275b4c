"""The analytic model that chooses where nothing was measured. Mirrors kernels/blockscaled/model.cpp.

Waves of CTAs, as many at a time as a device has room for. Two things limit them: steps of 64 columns of a tile, which are
widened and multiplied one after another, and memory. Nothing is fitted: the constants are predictions, on Hopper from the
instructions of the main loop and from docs/notes/fp4_weights.md, on Blackwell from the peak of its tensor core. Tables of
measured shapes have the last word.
"""

from typing import NamedTuple

from gemmill.family import ProblemCall, Row
from gemmill.formats.layout import SIDE

MOST_CTAS = 2**30
"""Kernels count them in 32 bits, some past the last."""
_ALONE = 1.5
"""How much longer a step takes where one group of threads widens and multiplies in turns."""
_BEGIN_NS, _MEETING_NS = 2000.0, 500.0
"""To launch, and to add up slices of K in a cluster's shared memory."""


class Facts(NamedTuple):
    """Of a variant. Mirrors `Facts` in kernels/blockscaled/model.h."""

    splits: int
    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    sms: int
    """Multiprocessors that multiply a tile together."""
    k_groups: int
    """Groups of threads on different columns of a tile; 0 where nothing is widened."""
    ctas_of_sm: int
    """That fit on a multiprocessor."""
    step_ps: int
    """Picoseconds for 64 columns of a tile."""
    a_bits: int
    """Sixteenths of a bit that an element of A takes, with its part of a scale."""
    b_bits: int
    memory: int
    """Bytes that a nanosecond reads."""
    k_multiple: int
    """Of which K must be a multiple."""


def ctas_of(facts: Facts, m: int, n: int) -> int:
    """Of a call; where several multiprocessors share a tile they count as one."""
    return -(-m // facts.tile_m) * -(-n // facts.tile_n) * facts.splits


def model_ns(row: Row, call: ProblemCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: Facts = row.facts
    ctas, sms = ctas_of(facts, m, n), max(sm_count // facts.sms, 1)
    on_sm = min(facts.ctas_of_sm, -(-ctas // sms))
    waves = -(-ctas // (sms * on_sm))
    all_steps = -(-k // SIDE)
    steps = -(-all_steps // facts.splits)
    alone = _ALONE if on_sm * facts.k_groups == 1 else 1.0
    working = float(waves * on_sm) * float(steps) * float(facts.step_ps) * alone / 1000.0
    read = float(n) * float(k) * float(facts.b_bits) + float(m) * float(k) * float(facts.a_bits)
    memory = (read / 128.0 + 2.0 * float(m) * float(n)) / float(facts.memory)
    meeting = _MEETING_NS if facts.splits > 1 else 0.0
    return _BEGIN_NS + max(working, memory) + meeting


def refuses(row: Row, call: ProblemCall) -> str | None:
    """Why a variant takes no call of such sizes, beside what its row says."""
    m, n, k = call.sizes
    if (ctas := ctas_of(row.facts, m, n)) > MOST_CTAS:
        return f"it would take {ctas} CTAs for M, N = {m}, {n}, and counts up to {MOST_CTAS}"
    if k % row.facts.k_multiple:
        return (
            f"TMA gives codes of 4 and 6 bits a byte each where K is a multiple of {row.facts.k_multiple}, and K is {k}"
        )
    return None
