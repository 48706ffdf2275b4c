"""The compile-time plan of a DSL kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gemmill.family import Rule, first_rejection
from gemmill.gemm.facts import Facts
from gemmill.vocab import Backend


@dataclass(frozen=True)
class Plan(Facts):
    """The facts of a kernel that can be made. Raises ValueError for others, with the reason of the rule that rejects them."""

    rules: ClassVar[Sequence[Rule]] = ()
    """The rules of a family: its plan is a subclass."""

    def __post_init__(self) -> None:
        if self.config.backend is not Backend.CUTEDSL:
            raise ValueError(f"backend {self.config.backend}: the DSL makes kernels of {Backend.CUTEDSL}")
        if not (status := first_rejection(self.rules, self.config)):
            raise ValueError(status.reason)
