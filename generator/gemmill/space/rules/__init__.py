"""One constraint a function, with its hardware reason. A rule returns OK or a Status that says why it rejects."""

from collections.abc import Callable

from gemmill.space import quant
from gemmill.space.config import KernelConfig
from gemmill.space.family import AnyConfig
from gemmill.space.quant import QuantConfig
from gemmill.space.rules import alignment, cutedsl, groups, memory, problem, schedule
from gemmill.vocab import OK, Status, rejected

Rule = Callable[[KernelConfig], Status]

RULES: tuple[Rule, ...] = (
    *problem.RULES,
    *schedule.RULES,
    *groups.RULES,
    *alignment.RULES,
    *memory.RULES,
    *cutedsl.RULES,
)


def check(config: AnyConfig) -> Status:
    """The first rejection with the rule's name in it, or OK."""
    if isinstance(config, QuantConfig):
        return quant.check(config)
    for rule in RULES:
        status = rule(config)
        if not status:
            return rejected(status.reason, rule=rule.__name__)
    return OK
