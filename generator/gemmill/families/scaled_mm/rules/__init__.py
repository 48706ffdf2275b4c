"""One constraint a function, with its hardware reason. A rule yields why it rejects a config, or nothing."""

from gemmill.families.scaled_mm.rules import alignment, cutedsl, groups, memory, problem, schedule
from gemmill.family import Rule

RULES: tuple[Rule, ...] = (
    *problem.RULES,
    *schedule.RULES,
    *groups.RULES,
    *alignment.RULES,
    *memory.RULES,
    *cutedsl.RULES,
)
