"""One constraint a function, with its hardware reason. A rule returns OK or a Status that says why it rejects."""

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
