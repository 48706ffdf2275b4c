"""What a DSL kernel is compiled with."""

from dataclasses import dataclass

from gemmill.families.scaled_mm.dsl.facts import Facts
from gemmill.families.scaled_mm.rules import RULES
from gemmill.family import first_rejection
from gemmill.vocab import Backend


@dataclass(frozen=True)
class Plan(Facts):
    """The facts of a kernel that can be made. Raises ValueError for others, with the reason of the rule that rejects them."""

    def __post_init__(self) -> None:
        if self.config.backend is not Backend.CUTEDSL:
            raise ValueError(f"backend {self.config.backend}: the DSL makes kernels of {Backend.CUTEDSL}")
        if not (status := first_rejection(RULES, self.config)):
            raise ValueError(status.reason)
