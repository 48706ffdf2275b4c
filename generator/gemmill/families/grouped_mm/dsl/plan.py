"""The compile-time plan of a grouped kernel."""

from dataclasses import dataclass

from gemmill.families.grouped_mm import facts
from gemmill.families.grouped_mm.rules import RULES
from gemmill.gemm import plan


@dataclass(frozen=True)
class Plan(facts.Facts, plan.Plan):
    """The facts of a kernel that this family's rules accept."""

    rules = RULES
