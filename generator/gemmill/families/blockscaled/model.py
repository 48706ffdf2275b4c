"""The analytic model that chooses where nothing was measured. Mirrors kernels/blockscaled/model.cpp.

Waves of CTAs, as many at a time as a device has room for. Two things limit them: steps of a tile, which are widened and
multiplied one after another, and memory. Part of the lesser is not hidden. On Hopper the constants are fitted to times of an
H200 (docs/notes/fp4_weights.md). On Blackwell they are predictions from the peak of its tensor core. Tables of measured
shapes have the last word.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

MOST_CTAS = 2**30
"""Most CTAs of a call: kernels count them in 32 bits, some past the last."""
_BEGIN_NS, _UNHIDDEN = 1095.0, 0.156
"""Nanoseconds to launch, and the part of the lesser limit that is not hidden."""
_MEETING_NS = (0.0, 0.0, 1903.0, 2499.0, 3469.0, 3873.0, 4282.0, 6025.0, 4483.0)
"""Nanoseconds to add up slices of K in a cluster's shared memory, by the number of slices."""
_REACHED = (0, 1000, 1000, 760, 760, 760, 850, 940, 760)
"""Permille of the multiprocessors that clusters reach at a time, by the CTAs of a cluster: it lies within a group of 14 to
18."""
_L2 = 18505.0
"""Bytes a nanosecond at which every column of tiles reads activations again."""


class Facts(NamedTuple):
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
    """Picoseconds for a step of a CTA that has a multiprocessor alone."""
    shared_permille: int
    """Permille of `step_ps` that a step takes for each of the CTAs that share a multiprocessor."""
    a_bits: int
    """Sixteenths of a bit that an element of A takes, with its part of a scale."""
    b_bits: int
    memory: int
    """Bytes that a nanosecond reads."""
    k_multiple: int
    """The number that K must be a multiple of."""


def ctas_of(facts: Facts, m: int, n: int) -> int:
    """CTAs of a call; several multiprocessors that share a tile count as one."""
    return -(-m // facts.tile_m) * -(-n // facts.tile_n) * facts.splits


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: Facts = row.facts
    ctas, sms = ctas_of(facts, m, n), max(sm_count // facts.sms, 1)
    sms = max(sms * _REACHED[facts.splits] // 1000, 1)
    on_sm = min(facts.ctas_of_sm, -(-ctas // sms))
    waves = -(-ctas // (sms * on_sm))
    all_steps = -(-k // facts.step_columns)
    steps = -(-all_steps // facts.splits)
    each = (
        float(facts.step_ps) / 1000.0
        if on_sm == 1
        else float(on_sm * facts.shared_permille) * float(facts.step_ps) / 1e6
    )
    working = float(waves) * float(steps) * each
    of_a, of_b = float(m) * float(k) * float(facts.a_bits) / 128.0, float(n) * float(k) * float(facts.b_bits) / 128.0
    again = of_a * float(-(-n // facts.tile_n)) / _L2
    memory = (of_a + of_b + 2.0 * float(m) * float(n)) / float(facts.memory) + again
    return _BEGIN_NS + max(working, memory) + _UNHIDDEN * min(working, memory) + _MEETING_NS[facts.splits]


def refuses(row: Row, call: ShapedCall) -> str | None:
    """Why a variant takes no call of such sizes, beside what its row says."""
    m, n, k = call.sizes
    if (ctas := ctas_of(row.facts, m, n)) > MOST_CTAS:
        return f"it would take {ctas} CTAs for M, N = {m}, {n}, and counts up to {MOST_CTAS}"
    if k % row.facts.k_multiple:
        return f"its loads take K in multiples of {row.facts.k_multiple}, and K is {k}"
    return None
