"""Questions to a run of random calls, and its answers: plain values, which cross between processes as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FuzzError(RuntimeError):
    """A run that cannot be made; the text is one sentence."""


class FaultKind(StrEnum):
    """The fault of a call."""

    CRASH = "crash"
    """its process or its CUDA context died"""
    HANG = "hang"
    """it did not end in time"""
    REFUSED = "refused"
    """a legal call raised an error"""
    WRONG = "wrong"
    """results other than the reference's"""
    OUT_OF_BOUNDS = "out of bounds"
    """changed bytes outside of outputs: guards, gaps between rows, operands"""
    ACCEPTED = "accepted"
    """a broken call raised no error"""
    SENTENCE = "sentence"
    """a broken call raised an error, which is not the sentence that the checks have for it"""
    TOUCHED = "touched"
    """a broken call was refused, and had written something"""
    UNJUDGED = "unjudged"
    """making the call or its reference raised an error"""
    NOT_REPEATABLE = "not repeatable"
    """wrong among others, right when called alone"""
    BATCH = "batch"
    """a row has other bits in a batch than alone, under batch invariance"""


@dataclass(frozen=True, kw_only=True)
class FuzzSpec:
    """The arguments of a process that makes calls."""

    ops: tuple[str, ...]
    seed: int = 0
    gpu: bool = False
    build: str | None = None

    def op_of(self, index: int) -> str:
        """The op of a call. Ops take turns."""
        return self.ops[index % len(self.ops)]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A call that went wrong."""

    kind: FaultKind
    op: str
    seed: int
    index: int
    detail: str
    """The fault in a sentence."""
    reproducer: str
    """The command that makes this call alone."""


def finding_of(spec: FuzzSpec, found: Mapping[str, Any]) -> Finding:
    """The finding of a process at a call of a run: kind, index and detail."""
    place = ["--gpu", *(["--build", spec.build] if spec.build else [])] if spec.gpu else ["--cpu"]
    index, op = found["index"], spec.op_of(found["index"])
    return Finding(
        kind=FaultKind(found["kind"]),
        op=op,
        seed=spec.seed,
        index=index,
        detail=found["detail"],
        reproducer=" ".join(["gemmill fuzz --op", op, f"--seed {spec.seed} --only {index}", *place]),
    )
