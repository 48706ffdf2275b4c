"""One call judged by its op's program, with the sentence of the first test that fails."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmill.family.operand import DTYPE_CODES, Call, Operand
from gemmill.family.program import Calc, Code, Fact, Instruction, Program, Relation, Result
from gemmill.family.schema import ArgumentKind, OpSchema

_FACT: dict[Fact, Callable[[Operand, int], int]] = {
    Fact.RANK: lambda x, dim: len(x.shape),
    Fact.SIZE: lambda x, dim: x.shape[dim],
    Fact.ROWS: lambda x, dim: x.rows,
    Fact.NUMEL: lambda x, dim: x.numel,
    Fact.ROW_STRIDE: lambda x, dim: x.row_stride,
    Fact.STEP: lambda x, dim: x.strides[dim] if x.shape[dim] > 1 else 1,
    Fact.LONGER: lambda x, dim: sum(size > 1 for size in x.shape) if x.numel else 0,
    Fact.DENSE: lambda x, dim: int(x.is_dense),
    Fact.DTYPE: lambda x, dim: DTYPE_CODES.get(x.dtype, -1),
}
_MAKES_VALUES = (Code.FACT, Code.CALC, Code.ITEM, Code.WORD)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A tensor to be allocated."""

    dtype: str
    """By torch's name."""
    shape: tuple[int, ...]
    is_column_major: bool
    """Of a matrix: whether columns lie behind one another instead of rows."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One call with the facts that its contract computes."""

    schema: OpSchema
    roles: Sequence[str]
    """The roles of its arguments, then of its results."""
    program: Program
    call: Call
    specials: Mapping[str, Callable[["Judged"], str | None]]
    """The family's."""

    @cached_property
    def values(self) -> list[int]:
        """The values that the program has computed so far."""
        given = [_number(self.call[parameter.name], parameter.kind) for parameter in self.schema.parameters]
        return [*given, *self.program.initial[len(given) :]]

    @cached_property
    def arguments(self) -> list[Any]:
        """Of the call, in the schema's order."""
        return [self.call[name] for name in self.schema.arguments]

    def __getitem__(self, name: str) -> Any:
        """The value of a name in a sentence: an argument by its role, or a size."""
        place = self.program.values[name]
        if place >= len(self.arguments):
            return self.values[place]
        value = self.arguments[place]
        if self.schema.parameters[place].kind is ArgumentKind.TENSORS:
            return _ToldList(self.schema.arguments[place], value)
        return _Told(self, self.schema.arguments[place], value) if isinstance(value, Operand) else value

    def get(self, name: str) -> Any:
        """The same; None too where the op has nothing of that name."""
        return self[name] if name in self.program.values else None

    @property
    def results(self) -> tuple["Dense", ...]:
        """The results of the call. Sizes may be symbolic: this computes them again, without a comparison."""
        return tuple(self._result(result) for result in self.program.results)

    def _result(self, result: Result) -> "Dense":
        leading = () if result.leading < 0 else self.arguments[result.leading].shape[:-1]
        return Dense(
            dtype=result.dtype or self.arguments[result.source].dtype,
            shape=(*leading, *map(self._computed, result.sizes)),
            is_column_major=result.is_column_major,
        )

    def _computed(self, place: int) -> int:
        made = [x for x in self.program.instructions if x.code in _MAKES_VALUES and x.operands[0] == place]
        match made:
            case []:
                return self.arguments[place] if place < len(self.arguments) else self.program.initial[place]
            case [Instruction(code=Code.FACT, operands=(_, fact, x, *dim))]:
                return _FACT[Fact(fact)](self.arguments[x], *(dim or [0]))
            case [Instruction(code=Code.CALC, operands=(_, how, x, y))]:
                return Calc(how).of(self._computed(x), self._computed(y))
        assert self.fault is None  # of an argument that is no tensor, or of the alternative that is taken
        return self.values[place]

    def tensor(self, role: str) -> Operand:
        """A present tensor."""
        found = self.arguments[self.program.values[role]]
        assert isinstance(found, Operand)
        return found

    @cached_property
    def fault(self) -> str | None:
        """The sentence of the first test that fails, or None: then all sizes are known."""
        at, end = 0, len(self.program.instructions)
        while at < end:
            instruction = self.program.instructions[at]
            at += 1
            if instruction.code is Code.SPECIAL:
                if (sentence := self.specials[self.program.specials[instruction.operands[0]]](self)) is not None:
                    return sentence
            elif instruction.code is Code.JUMP or not self._done(instruction):
                if instruction.refuses:
                    return instruction.say.format_map(self)
                at += instruction.otherwise
        return None

    def _done(self, instruction: Instruction) -> bool:
        """Execute the instruction; False for a test that fails."""
        x, y, z, last = (*instruction.operands, 0, 0, 0)[:4]
        values, arguments = self.values, self.arguments
        match instruction.code:
            case Code.FACT:
                values[x] = _FACT[Fact(y)](arguments[z], last)
            case Code.CALC:
                values[x] = Calc(y).of(values[z], values[last])
            case Code.ITEM:
                items = arguments[y] or ()
                values[x] = len(items) if z < 0 else (*items, *(0,) * (z + 1))[z]
            case Code.COMPARE:
                return Relation(y).holds(values[x], values[z])
            case Code.REAL:
                return Relation(y).holds(arguments[x], struct.unpack("<d", struct.pack("<q", z))[0])
            case Code.DTYPE:
                return bool(y >> DTYPE_CODES.get(arguments[x].dtype, 63) & 1)
            case Code.LIKE:
                return bool(arguments[x].shape == (*arguments[y].shape[:-1], values[z]))
            case Code.STRIDES:
                return bool(arguments[x].meaningful_strides == arguments[y].meaningful_strides)
            case Code.WORD:
                if arguments[y] not in self.program.words:
                    return False
                values[x] = self.program.words.index(arguments[y])
            case Code.DETACHED:
                return not any(other.is_differentiated for other in self._given(y))
            case Code.TOGETHER:
                return arguments[x] is None or all(other.device == arguments[x].device for other in self._given(y))
            case Code.APART:
                return arguments[x] is None or all(_apart(arguments[x], other) for other in self._given(y))
            case Code.ALIGNED:
                return all(other.is_aligned(x) for other in self._given(y))
        return True

    def _given(self, bits: int) -> list[Operand]:
        """The present tensors among those that have a bit."""
        chosen = (x for i, x in enumerate(self.arguments) if bits >> i & 1 and x is not None)
        return [one for x in chosen for one in (x if isinstance(x, tuple | list) else (x,))]


def _apart(x: Operand, y: Operand) -> bool:
    return not (x.data and x.data < y.end and y.data < x.end)


def _number(value: Any, kind: ArgumentKind) -> int:
    """An argument among the values: itself, or whether the call has it."""
    return int(value) if kind in (ArgumentKind.INT, ArgumentKind.BOOL) else int(value is not None)


class _Told:
    """A tensor in a sentence."""

    def __init__(self, judged: Judged, name: str, operand: Operand) -> None:
        self.name, self._judged, self._operand = name, judged, operand
        self.dtype, self.device = operand.dtype, operand.device
        self.shape, self.strides, self.rank = list(operand.shape), list(operand.strides), len(operand.shape)

    @property
    def pieces(self) -> Mapping[int, str]:
        """How far it begins past a boundary of the bytes that kernels read at once, by the least of these."""
        return _Pieces(self._operand)

    @property
    def ending(self) -> Mapping[str, list[int]]:
        """Its shape with another last dimension, by the name of that."""
        return _Ending(self)


class _ToldList:
    """A list of tensors in a sentence."""

    def __init__(self, name: str, operands: Sequence[Operand]) -> None:
        self.name, self.device = name, ", ".join(dict.fromkeys(operand.device for operand in operands))


class _Pieces(dict[int, str]):
    def __init__(self, operand: Operand) -> None:
        self._operand = operand

    def __missing__(self, least: int) -> str:
        pieces = self._operand.pieces(least)
        return f"{self._operand.data % pieces} bytes past a {pieces}-byte boundary"


class _Ending(dict[str, list[int]]):
    def __init__(self, told: _Told) -> None:
        self._told = told

    def __missing__(self, name: str) -> list[int]:
        return [*self._told.shape[:-1], self._told._judged[name]]
