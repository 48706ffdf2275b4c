"""The resources of an SM that a tile of a CuTe DSL kernel takes: the checks that families of GEMMs share."""

from collections.abc import Iterator

from gemmill.gemm.facts import Facts
from gemmill.gemm.limits import ACCUMULATOR_REGISTERS, OVERLAP_REGISTERS, SHARED_BYTES

FEWEST_STAGES = 2
PARTIAL_SETS = (2, 4)
"""Sets of partial sums that a K step's units divide into evenly: a unit has its set when the kernel is compiled."""


def check_registers(facts: Facts) -> Iterator[str]:
    """The sums of a tile must fit the registers that a thread has left for them."""
    most = OVERLAP_REGISTERS if facts.promoted else ACCUMULATOR_REGISTERS
    if facts.accumulator_registers > most:
        yield f"sums of a tile take {facts.accumulator_registers} registers of a thread, there are {most}"


def check_stages(facts: Facts) -> Iterator[str]:
    """Fewer than two stages leave the tensor core waiting for every load."""
    if facts.stages < FEWEST_STAGES or facts.shared_bytes > SHARED_BYTES:
        yield f"{facts.stages} stages of {facts.stage_bytes} bytes: {FEWEST_STAGES} or more must fit in {facts.stage_room}"


def check_partial_sets(facts: Facts) -> Iterator[str]:
    """More sets than two take turns where each WGMMA is promoted by itself, and a K step's do not fit into registers at once."""
    sets = facts.config.design.partial_sets
    if sets not in PARTIAL_SETS:
        yield f"{sets} sets of partial sums: a K step's WGMMAs divide into {' or '.join(map(str, PARTIAL_SETS))}"
    elif sets != PARTIAL_SETS[0] and not facts.alternates:
        yield (
            f"{sets} sets of partial sums take turns in groups of 32 where K is not divided and registers hold the sets, but not all sums of "
            "a K step"
        )
