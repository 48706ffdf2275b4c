"""The instructions of a contract: the extension interprets the same numbers (kernels/extension/contract.cpp)."""

import operator
from dataclasses import dataclass, replace
from enum import IntEnum

from gemmill.family.operand import DTYPE_CODES

MOST_RESULT_SIZES = 4


class Code(IntEnum):
    """The meaning of an instruction's four operands. Those from COMPARE on are tests, which hold or fail."""

    FACT = 0
    """value, which Fact, tensor, dimension (from the end where negative)"""
    CALC = 1
    """value, which Calc, two values"""
    ITEM = 2
    """value, a list, which of its whole numbers (0 beyond its end), or -1: how many there are, of whatever kind"""
    JUMP = 3
    """over `otherwise` instructions"""
    COMPARE = 4
    """a value, which Relation, another"""
    REAL = 5
    """a value that holds a real number, which Relation, the bits of another number"""
    DTYPE = 6
    """a tensor, a bit for each dtype that it may have"""
    LIKE = 7
    """a tensor, another of its shape but for the last dimension, which is a value"""
    STRIDES = 8
    """a tensor, another with the same strides where they mean something"""
    WORD = 9
    """value that becomes the index among the op's words, the text"""
    DETACHED = 10
    """0, a bit for each tensor for which autograd must record nothing"""
    TOGETHER = 11
    """a tensor, a bit for each that must be on its device"""
    APART = 12
    """a tensor, a bit for each that must have no byte in common with it"""
    SPECIAL = 13
    """which of the op's hand-written checks"""
    ALIGNED = 14
    """a number of bytes, a bit for each tensor that must begin at a multiple of them and of its element's size"""


class Fact(IntEnum):
    """A fact of a tensor."""

    RANK = 0
    SIZE = 1
    ROWS = 2
    """all dimensions but the last taken as one"""
    NUMEL = 3
    ROW_STRIDE = 4
    """of those rows, -1 where elements or rows do not follow one another"""
    STEP = 5
    """the stride of a dimension, 1 where no access takes it"""
    LONGER = 6
    """how many dimensions have more than one element; 0 where there are no elements"""
    DENSE = 7
    DTYPE = 8


class Calc(IntEnum):
    """An operation on whole numbers; a division by zero gives zero."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    REMAINDER = 4
    MOST = 5

    def of(self, x: int, y: int) -> int:
        """The result."""
        if self in (Calc.DIVIDE, Calc.REMAINDER) and y == 0:
            return 0
        result: int = _CALC[self](x, y)
        return result


class Relation(IntEnum):
    """Of two numbers."""

    EQUAL = 0
    UNEQUAL = 1
    AT_MOST = 2
    AT_LEAST = 3
    BELOW = 4
    ABOVE = 5

    def holds(self, x: float, y: float) -> bool:
        """Whether it does."""
        return bool(_HOLDS[self](x, y))


_CALC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, max)
_HOLDS = (operator.eq, operator.ne, operator.le, operator.ge, operator.lt, operator.gt)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One step. A test that fails refuses the call, with its sentence, or goes on after `otherwise` more instructions."""

    code: Code
    operands: tuple[int, ...]
    otherwise: int = 0
    """0: refuse."""
    say: str = ""

    @property
    def refuses(self) -> bool:
        """Whether a failing test refuses the call."""
        return self.code >= Code.COMPARE and not self.otherwise

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the extension reads it."""
        return (self.code, self.otherwise, *self.operands, *(0,) * (4 - len(self.operands)))


Block = list[Instruction]


def unless(test: Block, more: int) -> Block:
    """The same tests; where one fails, execution continues `more` instructions after them, instead of a refusal."""
    last = len(test) - 1
    return [replace(x, otherwise=last - i + more) if x.refuses else x for i, x in enumerate(test)]


def either(first: Block, second: Block) -> Block:
    """Tests of which one must hold."""
    return [*unless(first, 1), Instruction(code=Code.JUMP, operands=(), otherwise=len(second)), *second]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A dense tensor to return, and how to allocate it."""

    dtype: str
    """Empty: that of another tensor."""
    source: int
    """Position of that tensor among the arguments."""
    leading: int
    """Position of the tensor whose dimensions but the last come before its own; -1 where there is none."""
    sizes: tuple[int, ...]
    """Which values its own dimensions are."""
    is_column_major: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the extension reads it."""
        dtype = DTYPE_CODES[self.dtype] if self.dtype else -1
        sizes = (*self.sizes, *(0,) * (MOST_RESULT_SIZES - len(self.sizes)))
        return (dtype, self.source, self.leading, self.is_column_major, len(self.sizes), *sizes)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A contract, ready to be interpreted. Instructions refer to arguments by position, to values by index."""

    instructions: tuple[Instruction, ...]
    values: dict[str, int]
    """Index of each value by its name; the arguments come first."""
    initial: tuple[int, ...]
    """The initial values: the constants and the op's fixed values, 0 for the others."""
    words: tuple[str, ...]
    """The words that its text argument may be."""
    results: tuple[Result, ...]
    """The tensors to return. Among the values their places follow those of the arguments."""
    specials: tuple[str, ...]
    """Hand-written checks, to which instructions refer by position."""

    @property
    def numbers(self) -> list[int]:
        """As the extension reads it."""
        return [number for instruction in self.instructions for number in instruction.numbers]
