"""Who is timed: gemmill, pinned variants of it, and what a user would call instead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

import gemmill
from gemmill.family import Row
from gemmill.runtime.select import model_ns
from gemmill.runtime.table import Table
from gemmill.tune.checking import Reference
from gemmill.tune.operands import Operands
from gemmill.tune.peers import Multiply, Peer, through_ops, vllm_peer
from gemmill.tune.problems import Op, Problem, ops_of
from gemmill.tune.statistics import Sample
from gemmill.tune.timing import Prepared, Timer
from gemmill.vocab import DType

Bind = Callable[[Operands], Callable[[], object]]
"""A call with its arguments bound, so that host time is the call's own and not that of gathering them."""

SM_COUNT = 132
"""Of an H200: for guesses only."""


class FieldError(Exception):
    """Something that was asked for cannot be timed; the text is one sentence."""


class WrongResult(Exception):
    """A contender's result is not that of the reference: its time is not taken."""


class Contender(Protocol):
    """One way to compute problems, in this process or another."""

    name: str
    applies_scales: bool
    """Whether it computes all of the op; one that does not is shown, and not compared with."""

    def takes(self, problem: Problem) -> bool:
        """Whether the problem is one of its kind; preparing it may still fail."""
        ...

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        ...

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        """Host time of one call."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalContender:
    """A contender whose calls are made in this process."""

    name: str
    multiply: Multiply
    ops: tuple[Op, ...]
    applies_scales: bool = True
    scales_per_tensor: bool = False
    fewest_rows: int = 1
    suits: Callable[[Problem], bool] = lambda problem: True
    """Which problems of its ops it computes."""
    bind: Bind | None = None
    pinned: Callable[[], AbstractContextManager] = nullcontext
    """Makes the context for its calls."""
    row: Row | None = None
    """Of a variant: what the analytic model needs to guess its time."""

    def takes(self, problem: Problem) -> bool:
        return problem.op in self.ops and problem.m >= self.fewest_rows and self.suits(problem)

    def call(self, operands: Operands, i: int) -> Callable[[], object]:
        """One call, with the i-th copy of the weights."""
        return lambda: self.multiply(operands, i)

    def prepare(self, operands: Operands, timer: Timer, fewest: int) -> Prepared:
        calls = [self.call(operands, i) for i in range(len(operands.weights))]
        with self.pinned():
            self._check(operands)
            return timer.prepare(calls, fewest)

    def host_us(self, operands: Operands, timer: Timer) -> Sample:
        call = self.bind(operands) if self.bind is not None else self.call(operands, 0)
        with self.pinned():
            return timer.host_us(call)

    def _check(self, operands: Operands) -> None:
        operands.out.fill_(torch.nan)
        result = self.multiply(operands, 0)
        if not self.applies_scales:
            return
        comparison = reference_of(operands, self.scales_per_tensor).compare(operands.out if result is None else result)
        if not comparison.ok:
            raise WrongResult(f"wrong result of {operands.problem}: {comparison.report}")


_checks: dict[bool, tuple[Operands, Reference]] = {}


def reference_of(operands: Operands, scales_per_tensor: bool) -> Reference:
    """The check for these operands, made once for all contenders."""
    known = _checks.get(scales_per_tensor)
    if known is None or known[0] is not operands:
        known = (operands, Reference(operands, scales_per_tensor))
        _checks[scales_per_tensor] = known
    return known[1]


def bound_to_ops(namespace: object) -> Bind:
    """The same call with its arguments bound."""
    scaled_mm = namespace.cutlass_scaled_mm.default
    scaled_mm_azp = namespace.cutlass_scaled_mm_azp.default

    def bind(x: Operands) -> Callable[[], object]:
        if x.problem.op is Op.INT8_AZP:
            return partial(scaled_mm_azp, x.out, x.a, x.weights[0], x.a_scales, x.b_scales, x.azp_adj[0], x.azp, None)
        return partial(scaled_mm, x.out, x.a, x.weights[0], x.a_scales, x.b_scales, None)

    return bind


def ops_contender(namespace: str, name: str) -> LocalContender:
    """The ops of a namespace, each call answered by the variant that gemmill chooses."""
    ops = getattr(torch.ops, namespace)
    return LocalContender(name=name, multiply=through_ops(ops), bind=bound_to_ops(ops), ops=tuple(Op))


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


def variant_contenders(table: Table, multiply: Multiply) -> list[LocalContender]:
    """Every variant with bf16 results, pinned by name."""
    rows = {entry.name: (entry, row) for row, entry in zip(table.rows, table.entries, strict=True)}
    return [
        LocalContender(name=name, multiply=multiply, ops=ops_of(entry.predicate), pinned=_pin(name), row=row)
        for name, (entry, row) in rows.items()
        if entry.predicate.out_dtype is DType.BF16
    ]


def plausible(variants: Sequence[LocalContender], problem: Problem, ratio: float) -> list[LocalContender]:
    """The variants that the analytic model puts within `ratio` of its best: a sweep need not time the hopeless ones."""
    call = replace(problem.call, alignments=(16, 16, 16))
    guesses = {v.name: model_ns(v.row, call, SM_COUNT) for v in variants if v.row is not None and v.takes(problem)}
    limit = ratio * min(guesses.values(), default=0.0)
    return [v for v in variants if guesses.get(v.name, 0.0) <= limit]


def _pin(name: str) -> Callable[[], AbstractContextManager]:
    return lambda: gemmill.use_variant(name)


def vllm_contender(library: str) -> LocalContender:
    """vLLM's released kernels. Raises OSError or RuntimeError where this process cannot load the library."""
    return replace(of_peer(vllm_peer(library)), bind=bound_to_ops(torch.ops._C))


def of_peer(peer: Peer) -> LocalContender:
    """A peer of the tuner's as a contender."""
    return LocalContender(
        name=peer.name,
        multiply=peer.multiply,
        ops=peer.ops,
        applies_scales=peer.applies_scales,
        scales_per_tensor=peer.scales_per_tensor,
        fewest_rows=peer.fewest_rows,
        suits=peer.takes,
    )
