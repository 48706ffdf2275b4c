"""The plan of a gated kernel: its compile-time facts."""

from dataclasses import dataclass

from gemmill.families.gated_mm import facts
from gemmill.families.gated_mm.rules import RULES
from gemmill.gemm import plan


@dataclass(frozen=True)
class Plan(facts.Facts, plan.Plan):
    """The facts of a kernel that this family's rules accept."""

    rules = RULES
