"""One call judged by its op's program, with the sentence of the first test that fails."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmill.family.operand import DTYPE_CODES, Call, Operand
from gemmill.family.program import Calc, Code, Fact, Instruction, Program, Relation
from gemmill.family.schema import Kind, OpSchema

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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One call with what is found out about it."""

    schema: OpSchema
    roles: Sequence[str]
    program: Program
    call: Call
    specials: Mapping[str, Callable[["Judged"], str | None]]
    """The family's."""

    @cached_property
    def values(self) -> list[int]:
        """What the program has computed so far."""
        given = [_number(self.call[parameter.name], parameter.kind) for parameter in self.schema.parameters]
        return [*given, *self.program.initial[len(given) :]]

    @cached_property
    def arguments(self) -> list[Any]:
        """Of the call, in the schema's order."""
        return [self.call[name] for name in self.schema.arguments]

    def __getitem__(self, name: str) -> Any:
        """What a sentence calls by this name: an argument by its role, or a size."""
        if name not in self.roles:
            return self.values[self.program.values[name]]
        place = list(self.roles).index(name)
        value = self.arguments[place]
        return _Told(self, self.schema.arguments[place], value) if isinstance(value, Operand) else value

    def get(self, name: str) -> Any:
        """The same; None too where the op has nothing of that name."""
        return self[name] if name in self.program.values else None

    def tensor(self, role: str) -> Operand:
        """A tensor that is given."""
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
        """Do what it says; False where it is a test that fails."""
        x, y, z, last = (*instruction.operands, 0, 0, 0)[:4]
        values, arguments = self.values, self.arguments
        match instruction.code:
            case Code.FACT:
                values[x] = _FACT[Fact(y)](arguments[z], last)
            case Code.CALC:
                values[x] = Calc(y).of(values[z], values[last])
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
        return True

    def _given(self, bits: int) -> list[Operand]:
        """Those tensors that are given, of those that have a bit."""
        return [x for i, x in enumerate(self.arguments) if bits >> i & 1 and x is not None]


def _apart(x: Operand, y: Operand) -> bool:
    return not (x.data and x.data < y.end and y.data < x.end)


def _number(value: Any, kind: Kind) -> int:
    """An argument among the values: itself, or whether it is given."""
    return int(value) if kind in (Kind.INT, Kind.BOOL) else int(value is not None)


class _Told:
    """A tensor in a sentence."""

    def __init__(self, judged: Judged, name: str, operand: Operand) -> None:
        self.name, self._judged, self._operand = name, judged, operand
        self.dtype, self.device = operand.dtype, operand.device
        self.shape, self.strides, self.rank = list(operand.shape), list(operand.strides), len(operand.shape)

    @property
    def ending(self) -> Mapping[str, list[int]]:
        """Its shape with another last dimension, by the name of that."""
        return _Ending(self)


class _Ending(dict[str, list[int]]):
    def __init__(self, told: _Told) -> None:
        self._told = told

    def __missing__(self, name: str) -> list[int]:
        return [*self._told.shape[:-1], self._told._judged[name]]
