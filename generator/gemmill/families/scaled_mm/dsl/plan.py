"""The plan of a DSL kernel: its compile-time facts."""

from dataclasses import dataclass

from gemmill.families.scaled_mm.rules import RULES
from gemmill.gemm import plan


@dataclass(frozen=True)
class Plan(plan.Plan):
    """The facts of a kernel that this family's rules accept."""

    rules = RULES
