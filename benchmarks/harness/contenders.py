"""The timed sides: gemmill, pinned variants of it, and the calls that a user would make instead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

import gemmill
from gemmill.family import Row
from gemmill.numerics.measured import Bind, Expected, Operands, Peer, as_they_are, results_of, through
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.variant_table import VariantTable
from gemmill.tuner.peers import vllm_peer
from gemmill.tuner.workloads import Workload
from harness.statistics import Sample
from harness.timers import Prepared, Timer

SM_COUNT = 132
"""Of an H200: for guesses only."""
ALIGNED = 16
"""Bytes: of operands as torch allocates them."""
POISON = 0xFF
"""NaN of all float types."""


class FieldError(Exception):
    """A requested side cannot be timed; the text is one sentence."""


class WrongResult(Exception):
    """A contender's result is not that of the reference: its time is not taken."""


class Contender(Protocol):
    """One way to compute workloads, in this process or another."""

    name: str
    complete: bool
    """Whether it computes all of the op; one that does not is shown, and not compared with."""

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of its kind; preparing it may still fail."""
        ...

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        ...

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        """Host time of one call."""
        ...


class CheckedCalls:
    """The common part of contenders whose family makes their operands and checks results. A class of them adds `takes` and `call`."""

    complete = True

    def call(self, operands: Any, i: int) -> Callable[[], object]:
        """A call with the i-th copy's arguments bound, so that host time is the call's own and not that of gathering them."""
        raise NotImplementedError

    def check(self, operands: Any, call: Callable[[], object]) -> None:
        """Hold the result of a call against the reference. Raises WrongResult."""
        raise NotImplementedError

    def pinned(self, operands: Any) -> AbstractContextManager:
        """The context of its calls."""
        return nullcontext()

    def prepare(self, operands: Any, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        with self.pinned(operands):
            self.check(operands, self.call(operands, 0))
            return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def host_us(self, operands: Any, timer: Timer) -> Sample:
        """Host time of one call."""
        with self.pinned(operands):
            return timer.host_us(self.call(operands, 0))


@dataclass(frozen=True, kw_only=True)
class LocalContender:
    """A contender whose calls are made in this process."""

    name: str
    bind: Bind
    """A call with its arguments bound, so that host time is the call's own and not that of gathering them."""
    suits: Callable[[Workload], bool] = lambda workload: True
    """Which workloads it computes."""
    given: Callable[[Any], Any] = as_they_are
    """The operands as it takes them."""
    complete: bool = True
    pinned: Callable[[], AbstractContextManager] = nullcontext
    """Makes the context for its calls."""
    row: Row | None = None
    """Of a variant: the analytic model's inputs."""

    def takes(self, workload: Workload) -> bool:
        return self.suits(workload)

    def call(self, operands: Operands, i: int) -> Callable[[], object]:
        """One call, with the i-th copy of the weights."""
        return self.bind(self.given(operands), i)

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        given = self.given(operands)
        calls = [self.bind(given, i) for i in range(given.copies)]
        with self.pinned():
            self._check(operands)
            return timer.prepare(calls, fewest)

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        with self.pinned():
            return timer.host_us(self.call(operands, 0))

    def _check(self, operands: Operands) -> None:
        for output in operands.outputs.values():
            output.view(torch.uint8).fill_(POISON)
        results = results_of(operands, self.call(operands, 0)())
        if not self.complete:
            return
        comparison = expected_of(operands, self.given).compare(results)
        if not comparison.ok:
            raise WrongResult(f"wrong result of {operands.workload}: {comparison.report}")


_checks: dict[Callable[[Any], Any], tuple[Operands, Expected]] = {}


def expected_of(operands: Operands, given: Callable[[Any], Any]) -> Expected:
    """The check for these operands as a contender takes them, made once for all that do."""
    known = _checks.get(given)
    if known is None or known[0] is not operands:
        known = (operands, given(operands).expected())
        _checks[given] = known
    return known[1]


def ops_contender(namespace: str, name: str) -> LocalContender:
    """The ops of a namespace, each call answered by the variant that gemmill chooses."""
    return LocalContender(name=name, bind=through(getattr(torch.ops, namespace)))


def constant_weights_contender() -> LocalContender:
    """The same ops with the caller's promise that weights are constant, which lets them be read early."""
    return replace(ops_contender("gemmill", "gemmill constant"), pinned=_constant_weights)


@contextmanager
def _constant_weights() -> Iterator[None]:
    gemmill.assume_constant_weights(True)
    try:
        yield
    finally:
        gemmill.assume_constant_weights(False)


@dataclass(frozen=True, kw_only=True)
class BatchInvariantContender:
    """A contender whose calls are made under the contract of `gemmill.batch_invariant`."""

    name: str
    subject: Contender
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        return self.subject.takes(workload)

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        with gemmill.batch_invariant():
            return self.subject.prepare(operands, timer, fewest)

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        with gemmill.batch_invariant():
            return self.subject.host_us(operands, timer)


def variant_contenders(table: VariantTable, bind: Bind, family: str) -> list[LocalContender]:
    """Every variant of a family that serves a measured class, pinned by name."""
    rows = {entry.name: (entry, row) for _, row, entry in table.of(family)}
    return [
        LocalContender(name=name, bind=bind, suits=of_classes(classes), pinned=_pin(name), row=row)
        for name, (entry, row) in rows.items()
        if (classes := classes_served(entry.config, family))
    ]


def classes_served(config: object, family: str) -> frozenset[str]:
    """The measured classes of a family that a config's kernel serves."""
    return frozenset(
        name for name, (owner, _, _, one) in REGISTRY.measured.items() if owner.name == family and one.serves(config)
    )


def of_classes(classes: frozenset[str]) -> Callable[[Workload], bool]:
    """Whether a workload is of one of these."""
    return lambda workload: workload.op in classes


def plausible(variants: Sequence[LocalContender], workload: Workload, ratio: float) -> list[LocalContender]:
    """The variants that the analytic model puts within `ratio` of its best: a sweep need not time the hopeless ones."""
    call = replace(workload.call, alignments=tuple(ALIGNED for _ in workload.call.alignments))
    guesses = {v.name: model_ns(v.row, call, SM_COUNT) for v in variants if v.row is not None and v.takes(workload)}
    limit = ratio * min(guesses.values(), default=0.0)
    return [v for v in variants if guesses.get(v.name, 0.0) <= limit]


def _pin(name: str) -> Callable[[], AbstractContextManager]:
    return lambda: gemmill.use_variant(name)


def vllm_contender(library: str) -> LocalContender:
    """vLLM's released kernels. Raises OSError or RuntimeError where this process cannot load the library."""
    return of_peer(vllm_peer(library))


def of_peer(peer: Peer) -> LocalContender:
    """A peer of the tuner's as a contender."""
    return LocalContender(name=peer.name, bind=peer.bind, suits=peer.takes, given=peer.given, complete=peer.complete)
