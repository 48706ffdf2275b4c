"""An epilogue as a list of steps: the operations of a Python function on an accumulator and vectors, as traced.

The steps alone determine the kernel, the reference's computation and the digest. Nothing here needs torch or the DSL.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

DIGEST_CHARACTERS = 12
"""Characters of a digest, in names."""
MOST_OF_A_KIND = 4
"""Inputs of one kind that a kernel takes at most: vectors along rows, vectors along columns, scalars."""


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Kind(StrEnum):
    """The kind of a step's value."""

    F32 = "f32"
    S32 = "s32"
    TRUTH = "truth"
    """the result of a comparison"""


class Along(StrEnum):
    """Which elements of D have a value of an input in common."""

    ROW = "row"
    """a row of D, which is a row of A"""
    COLUMN = "column"
    """a column of D, which is a column of B"""
    SCALAR = "scalar"
    """all elements of D"""


class Stored(StrEnum):
    """How an input's values lie in memory."""

    F32 = "f32"
    S32 = "s32"
    OUT = "out"
    """as D's elements: 16 bits"""

    @property
    def kind(self) -> Kind:
        """The kind of value that a step sees."""
        return Kind.S32 if self is Stored.S32 else Kind.F32


@dataclass(frozen=True)
class Input:
    """A vector or scalar that an epilogue reads."""

    name: str
    along: Along
    stored: Stored
    absent: float | None = None
    """The default of each of its values in a call without it; None for a required input."""


@dataclass(frozen=True)
class Step:
    """One operation. Values have numbers: the accumulator is 0, then come the inputs, then the steps."""

    word: str
    of: tuple[int, ...]
    number: float = 0.0
    """The number, where the step is a constant."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """An epilogue as inputs and steps."""

    name: str
    accumulator: Kind
    """Kind of the sums: s32 for s8 operands, f32 for others."""
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    result: int
    """The value to store."""

    def along(self, along: Along) -> tuple[Input, ...]:
        """Its inputs of one kind, in order."""
        return tuple(given for given in self.inputs if given.along is along)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of each value."""
        found = [self.accumulator, *(given.stored.kind for given in self.inputs)]
        for step in self.steps:
            if step.word in ("whole", "number", "float"):
                found.append(Kind.S32 if step.word == "whole" else Kind.F32)
            else:
                found.append(Kind.TRUTH if step.word in COMPARISONS else found[step.of[-1]])
        return tuple(found)

    @cached_property
    def text(self) -> str:
        """The whole epilogue as JSON, which `of_text` reads."""
        parts = {
            "name": self.name,
            "accumulator": self.accumulator,
            "inputs": [
                [given.name, given.along, given.stored, *([] if given.absent is None else [given.absent])]
                for given in self.inputs
            ],
            "steps": [[step.word, list(step.of), step.number] for step in self.steps],
            "result": self.result,
        }
        return json.dumps(parts, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """The digest of its text: two that compute the same by the same names are one."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    @cached_property
    def key(self) -> str:
        """Its part of kernels' names: letters and digits of its own name, then the digest."""
        return "".join(self.name.split("_")).lower() + "x" + self.digest


def of_text(text: str) -> Traced:
    """The epilogue that `Traced.text` wrote. Raises ValueError for another text."""
    try:
        told = json.loads(text)
        return Traced(
            name=str(told["name"]),
            accumulator=Kind(told["accumulator"]),
            inputs=tuple(
                Input(str(name), Along(along), Stored(stored), *map(float, absent))
                for name, along, stored, *absent in told["inputs"]
            ),
            steps=tuple(Step(str(word), tuple(map(int, of)), float(number)) for word, of, number in told["steps"]),
            result=int(told["result"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{text[:60]!r} is no traced epilogue: {type(error).__name__}: {error}") from None


_KNOWN: dict[str, Traced] = {}


def learn(traced: Traced) -> Traced:
    """Makes an epilogue known by its key: from a traced function, or from a build that has kernels with it."""
    return _KNOWN.setdefault(traced.key, traced)


def known(key: str) -> Traced:
    """The epilogue of a key. Raises ValueError where none was learnt."""
    if key not in _KNOWN:
        raise ValueError(
            f"epilogue {key!r} is not known here: import the module that has its function, or name it by "
            "`gemmill build --epilogue MODULE:FUNCTION`"
        )
    return _KNOWN[key]


def all_known() -> Iterator[Traced]:
    """Every known epilogue."""
    yield from tuple(_KNOWN.values())
