"""Makers and judges of an op's calls, as a family declares them. verify, fuzz, tests and explain loop over them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from gemmill.family import Family
from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.comparison import Comparison
from gemmill.numerics.draw import Draw
from gemmill.numerics.measured import Maker
from gemmill.numerics.memory import GUARD_BYTES, GUARD_ROWS, POISON, Memory, Slot
from gemmill.registry import REGISTRY
from gemmill.vocab import DType

Question = Mapping[str, Any]
"""A call in the words of `gemmill explain`: its options by name, None for omitted ones."""


def gemm_sizes(op: str, question: Question) -> tuple[int, int, int]:
    """M, N and K of a question to a GEMM.

    Raises ValueError where one is missing, and for options that mean nothing to the op's family.
    """
    m, n, k = question["m"], question["n"], question["k"]
    if n is None or k is None or question["hidden"] is not None:
        raise ValueError(f"{op} wants -m, -n and -k, and no --hidden")
    refuse_unused(op, question)
    return m, n, k


def on_meta(dtype: DType, *shape: int) -> torch.Tensor:
    """An operand of a question, without memory."""
    return torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")


def refuse_unused(op: str, question: Question) -> None:
    """Raise ValueError for options that mean nothing to an op's family."""
    own = {option.name for option in REGISTRY.ops[op][0].questions}
    given = [o.spelled for o in REGISTRY.questions.values() if o.name not in own and o.is_given(question)]
    if given:
        raise ValueError(f"{op} with {', '.join(given)}: that means nothing to it, leave it out")


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """The result of a call, compared with the reference."""

    report: str
    """The fault in a sentence; empty if there is none."""
    worst_fraction: float = 0.0
    """Largest error as a fraction of its tolerance; 0 where results must be equal to the last bit."""


class Case(Protocol):
    """One call of an op, described by sizes and options. Its text says which."""

    @property
    def op(self) -> str:
        """The op's name."""

    def arguments(self, device: str) -> Sequence[Any]:
        """Fresh operands in the order of the op's schema, outputs poisoned."""

    def run(self, device: str) -> CaseOutcome:
        """Make the call on fresh operands of that device, outputs poisoned. Raises whatever the op raises."""


@dataclass(frozen=True, kw_only=True)
class SpecCase:
    """The part of a `Case` that a spec of its call describes."""

    spec: Any

    def __str__(self) -> str:
        return str(self.spec)

    @property
    def op(self) -> str:
        """The op's name."""
        name: str = self.spec.op
        return name


def result_memory(dtype: torch.dtype, shape: tuple[int, int], pad: int, device: torch.device) -> Memory:
    """Memory of a poisoned matrix `out`, whose rows lie `pad` elements apart, with rows of guards around."""
    slot = Slot.matrix(dtype, shape, (shape[1] + pad, 1), values=None, written=True)
    return Memory({"out": slot}, device, GUARD_BYTES + GUARD_ROWS * slot.row_stride * slot.dtype.itemsize)


def outcome_of(comparison: Comparison, memory: Memory) -> CaseOutcome:
    """The outcome of a call whose results were compared, and whose memory was poisoned before."""
    report = comparison.report
    if comparison.ok and memory.changed(torch.full_like(memory.bytes, POISON), written=True).any():
        report = "elements outside the result were written"
    return CaseOutcome(report=report, worst_fraction=comparison.worst_fraction)


@dataclass(frozen=True, kw_only=True)
class CodeRange:
    """Codes packed in a tensor of bytes, of which more than one value may be right. Bit b of byte B is bit 8 B + b of the tensor."""

    bits: int
    """The bits of a code, 16 at most."""
    first: int
    """The first bit of the first code."""
    strides: tuple[int, ...]
    """Bits between codes, for each of up to four dimensions."""
    low: Tensor
    """The lowest right value of each code."""
    high: Tensor
    """The highest right value of each code."""


class Judge(Protocol):
    """The expected results of one random call, computed before the call."""

    def wrong(self) -> Tensor:
        """The number of wrong elements, on the device. It waits for nothing."""

    def report(self) -> str:
        """The fault in words; nothing if there is none."""


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The maker of all calls of one family's ops."""

    of_config: Callable[[Any], Iterable[Case]]
    """Calls of every op that a config serves, below, at and across its kernel's own limits."""
    sized: Callable[[Any, Mapping[str, int]], Case]
    """One call that a config serves, at the sizes that options say. Its result is exact where there is a choice."""
    once: Callable[[], Iterable[tuple[str, Case]]]
    """One small call of each kind that users make, with a name."""
    asked: Callable[[str, Question], list[Any]]
    """An op's arguments without data. Raises ValueError for a question that the op does not accept."""
    drawn: Callable[[str, Draw, Limits], LegalCall]
    """A random call that an op must take."""
    judge: Callable[[LegalCall, Memory, Tensor], Judge]
    """The judge of a call, of its memory, and of a copy of that memory's bytes from before the call."""
    is_lacking: Callable[[LegalCall, str], bool]
    """Whether the text of a refusal says that the build has no variant for a call, and it has none."""
    counts_are_final: bool = True
    """Whether all that a judge counts as wrong is wrong. Else `report` has the last word."""
    limits: Callable[[str, Mapping[str, Any]], Mapping[str, Tensor]] | None = None
    """The distance by which each element of a right kernel's result may be from the reference's, of an op and its
    arguments by name.

    The arguments are as the reference left them. An output without an entry must equal the reference, but for steps of
    codes. None if every output must.
    """
    ranges: Callable[[str, Mapping[str, Any]], Mapping[str, Sequence[CodeRange]]] | None = None
    """The codes in a result's bytes that may be one of several. Bytes outside every range must equal the reference."""
    measured: Callable[[torch.device, int], Maker] | None = None
    """The maker of operands on a device. The copies of the most-read operands take this many bytes together. None for
    an op that is never timed.
    """


def cases_of_family(family: Family) -> Cases:
    """The maker of the family's calls."""
    cases: Cases = import_module(family.cases).CASES
    return cases


def cases_of_op(op: str) -> Cases:
    """The maker of an op's calls. Raises KeyError where there is no such op."""
    return cases_of_family(REGISTRY.ops[op][0])


def cases_of(config: Any) -> Cases:
    """The maker of calls of the ops that a config serves."""
    return cases_of_family(REGISTRY.family_of(config))
