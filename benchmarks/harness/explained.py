"""The choice for a call and the variants that take it, as `gemmill.explain` tells them: of families whose classes have no drawn weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import gemmill
from gemmill.runtime.choosing import Trust
from harness.contenders import Contender
from harness.sieve import Variants
from harness.timers import Prepared, Timer


@dataclass(frozen=True, kw_only=True)
class PinnedVariant:
    """The subject's calls, answered by one variant."""

    name: str
    subject: Any
    complete: bool = True

    def takes(self, workload: Any) -> bool:
        """Whether the variant takes it: `explained` names no other."""
        return True

    def call(self, operands: Any, i: int) -> Callable[[], object]:
        """A call of one copy of operands with its arguments bound."""
        call: Callable[[], object] = self.subject.call(operands, i)
        return call

    def pinned(self) -> AbstractContextManager:
        """The context of its calls."""
        return gemmill.use_variant(self.name)

    def prepare(self, operands: Any, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        with self.pinned():
            prepared: Prepared = self.subject.prepare(operands, timer, fewest)
            return prepared


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The choice for a call."""

    variants: Variants
    """Those that take it, with the times that the model expects."""
    choice: str | None
    trust: Trust


def explained(subject: Contender, operands: Any) -> Explained:
    """Of the subject's call of these operands, by the active build."""
    call = subject.call(operands, 0)
    found = gemmill.explain(call.func._schema.name.partition("::")[2], *call.args)
    guesses = {rejected.name: rejected.us for rejected in found.trace if rejected.us is not None}
    name = None if found.entry is None else found.entry.name
    if name is not None:  # of the choice itself nothing is told; a measured one may be slower by the model
        guesses[name] = min(guesses.values(), default=1.0)
    pinned = tuple(PinnedVariant(name=variant, subject=subject) for variant in guesses)
    return Explained(variants=Variants(pinned=pinned, rows={}, guesses=guesses), choice=name, trust=found.trust)
