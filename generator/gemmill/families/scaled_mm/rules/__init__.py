"""Rules: one constraint a function, with its hardware reason.

Every function of these modules that yields is a rule. It yields why it rejects a config, or nothing.
"""

from inspect import isgeneratorfunction

from gemmill.families.scaled_mm.rules import alignment, cutedsl, groups, memory, operands, schedule
from gemmill.family import Rule

RULES: tuple[Rule, ...] = tuple(
    function
    for module in (operands, schedule, groups, alignment, memory, cutedsl)
    for function in vars(module).values()
    if isgeneratorfunction(function)
)
