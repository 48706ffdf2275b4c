"""From a contract to its program."""

import ast
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import groupby
from string import Formatter

from gemmill.family.classes import Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.family.program import Block, Calc, Code, Fact, Instruction, Program, Relation, Result, either, unless
from gemmill.family.schema import ArgumentKind
from gemmill.family.steps import Check, Let, OneOf, Require, Special, Step, When
from gemmill.family.tensor import Layout, Same, Tensor

Returned = tuple[Tensor, str, Sequence[str]]
"""A returned tensor, the tensor whose leading dimensions it has, if any, and the names of its own sizes."""
_CALC = {
    ast.Add: Calc.ADD,
    ast.Sub: Calc.SUBTRACT,
    ast.Mult: Calc.MULTIPLY,
    ast.FloorDiv: Calc.DIVIDE,
    ast.Mod: Calc.REMAINDER,
}
_RELATION = {
    ast.Eq: Relation.EQUAL,
    ast.NotEq: Relation.UNEQUAL,
    ast.LtE: Relation.AT_MOST,
    ast.GtE: Relation.AT_LEAST,
    ast.Lt: Relation.BELOW,
    ast.Gt: Relation.ABOVE,
}
_FACTS = {fact.name.lower(): fact for fact in Fact}
_PLACES = {code.name.lower(): code for code in (Code.DETACHED, Code.TOGETHER, Code.APART, Code.ALIGNED)}
_GRADIENT = (
    "{%s.name} requires grad while grad mode is enabled, and the op has no gradient: call it under torch.no_grad(), "
    "or with {%s.name}.detach()"
)


def compile_contract(
    kinds: Mapping[str, ArgumentKind],
    fixed: Mapping[str, int],
    contract: Sequence[Step],
    returned: Sequence[Returned] = (),
) -> Program:
    """The program of an op's contract; `kinds` are those of its arguments, by role. Raises ValueError where it contradicts
    itself."""
    if taken := sorted(set(fixed) & set(kinds)):
        raise ValueError(f"{taken[0]!r} is fixed as {fixed[taken[0]]} and an argument too")
    compiler = _Compiler(kinds, [x.role for x, _, _ in returned], fixed)
    tensors = [role for role, kind in kinds.items() if kind in (ArgumentKind.TENSOR, ArgumentKind.TENSORS)]
    steps = [Require(f"detached({role})", _GRADIENT % (role, role)) for role in tensors]
    instructions = compiler.steps((*steps, *contract))
    return Program(
        instructions=tuple(instructions),
        values=compiler.values,
        initial=tuple(compiler.initial),
        words=compiler.words,
        specials=tuple(compiler.specials),
        results=tuple(_result(compiler.values, *told) for told in returned),
    )


def _result(values: Mapping[str, int], x: Tensor, leading: str, sizes: Sequence[str]) -> Result:
    dtype, source = "", -1
    match x.dtypes:
        case Same(other):
            source = values[other]
        case (kind,):
            dtype = kind.torch_name
    return Result(
        dtype=dtype,
        source=source,
        leading=values[leading] if leading else -1,
        sizes=tuple(values[size] for size in sizes),
        is_column_major=x.layout is Layout.COLUMNS,
    )


class _Compiler:
    def __init__(self, kinds: Mapping[str, ArgumentKind], returned: Sequence[str], fixed: Mapping[str, int]) -> None:
        self._kinds = kinds
        self._fixed = fixed
        self.values = {name: i for i, name in enumerate((*kinds, *returned, *fixed))}
        self.initial = [*(0 for _ in (*kinds, *returned)), *fixed.values()]
        self.words: tuple[str, ...] = ()
        self.specials: list[str] = []
        self._constants: dict[int, int] = {}
        self._facts: dict[tuple[int, ...], int] = {}
        """Values of facts that hold at every place that the program has reached."""

    def steps(self, steps: Sequence[Step]) -> Block:
        """Their instructions. One instruction tests places that follow one another, and one by one where that fails."""
        block: Block = []
        for is_place, run in groupby(steps, _is_place):
            found = [x for step in run for x in self.step(step)]
            block += either(_at_once(found), found) if is_place else found
        return block

    def step(self, step: Step) -> Block:
        match step:
            case Let():
                return self._let(step)
            case Require():
                self._check_fields(step.say)
                return [replace(x, say=step.say) if x.refuses else x for x in self._test(_parsed(step.test))]
            case When():
                with self._branch():
                    test = self._test(_parsed(step.test))
                    body = [x for inner in step.steps for x in self.step(inner)]
                return [*unless(test, len(body)), *body]
            case OneOf():
                return self._one_of(step)
            case Special():
                self.specials.append(step.name)
                return [Instruction(code=Code.SPECIAL, operands=(len(self.specials) - 1,))]
            case Classes():
                return self._let(Let("class", self._class_number(step)))
            case Check():
                raise ValueError(f"{step} was not expanded")

    def _class_number(self, classes: Classes) -> str:
        """The fixed part of the op's class as one number, and the rest as expressions of the call."""
        constant, terms = 0, []
        for axis, weight in zip(classes.axes, classes.weights, strict=True):
            if axis.expression.isidentifier() and axis.expression not in self.values:
                continue
            if axis.expression in self._fixed:
                constant += weight * self._fixed[axis.expression]
            else:
                terms.append(f"{weight} * {axis.expression}")
        return " + ".join([str(constant), *terms])

    def _one_of(self, step: OneOf) -> Block:
        """Each test with a jump to the next where it fails; the last refuses."""
        self._check_fields(step.say)
        taken: dict[str, str] = {}
        for name, test in step.tests.items():
            terms = " and ".join(sorted(map(ast.unparse, _terms(_parsed(test)))))
            if terms in taken:
                raise ValueError(f"alternatives {taken[terms]!r} and {name!r} of {step.name!r} both hold where {test}")
            taken[terms] = name
        if step.name in self.values:
            raise ValueError(f"size {step.name!r} has alternatives and was named before")
        chosen, (_, zero) = self._new(), self._value(ast.Constant(0))
        blocks: list[Block] = []
        for i, test in enumerate(step.tests.values()):
            _, number = self._value(ast.Constant(i))
            done = Instruction(code=Code.CALC, operands=(chosen, Calc.ADD, number, zero))
            blocks.append([*self._alternative(_parsed(test)), done])
        self.values[step.name] = chosen
        last = [replace(x, say=step.say) if x.refuses else x for x in blocks.pop()]
        return reduce(lambda rest, block: either(block, rest), reversed(blocks), last)

    @contextmanager
    def _branch(self) -> Iterator[None]:
        """Instructions compiled inside may be skipped at run time."""
        known = dict(self._facts)
        yield
        self._facts = known

    def _check_fields(self, say: str) -> None:
        for _, field, _, _ in Formatter().parse(say):
            if field is not None:
                self._named(re.split(r"[.\[!]", field)[0])

    def _let(self, step: Let) -> Block:
        if step.name in self.values:
            raise ValueError(f"size {step.name!r} is {step.expression!r} and was named before")
        block, value = self._value(_parsed(step.expression))
        self.values[step.name] = value
        return block

    def _new(self, initial: int = 0) -> int:
        self.initial.append(initial)
        return len(self.initial) - 1

    def _value(self, node: ast.expr) -> tuple[Block, int]:
        """The instructions that compute an expression, and their value."""
        match node:
            case ast.Constant(value=int(number)):
                if number not in self._constants:
                    self._constants[number] = self._new(number)
                return [], self._constants[number]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return self._value(ast.Constant(-number))
            case ast.Name(id=name):
                return [], self._named(name)
            case ast.BinOp(left=left, op=how, right=right) if type(how) in _CALC:
                return self._joined(_CALC[type(how)], self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="ceil"), args=[x, y]):
                return self._value(_parsed(f"({ast.unparse(x)} + {ast.unparse(y)} - 1) // {ast.unparse(y)}"))
            case ast.Call(func=ast.Name(id="length" | "item"), args=[values, *rest]):
                which = ast.literal_eval(rest[0]) if rest else -1
                value = self._new()
                return [
                    Instruction(
                        code=Code.ITEM,
                        operands=(
                            value,
                            self._argument(values, "list", ArgumentKind.INTS, ArgumentKind.TENSORS),
                            which,
                        ),
                    )
                ], value
            case ast.Call(func=ast.Name(id="up"), args=[x, y]):
                return self._value(_parsed(f"ceil({ast.unparse(x)}, {ast.unparse(y)}) * {ast.unparse(y)}"))
            case ast.Call(func=ast.Name(id="most"), args=[first, *others]):
                return reduce(partial(self._joined, Calc.MOST), map(self._value, others), self._value(first))
            case ast.Call(func=ast.Name(id=fact), args=[tensor, *rest]) if fact in _FACTS:
                dim = [ast.literal_eval(x) for x in rest] or [0]
                asked = (_FACTS[fact], self._tensor(tensor), *dim)
                if asked in self._facts:
                    return [], self._facts[asked]
                value = self._facts[asked] = self._new()
                return [Instruction(code=Code.FACT, operands=(value, *asked))], value
        raise ValueError(f"{ast.unparse(node)!r} is no size")

    def _joined(self, how: Calc, x: tuple[Block, int], y: tuple[Block, int]) -> tuple[Block, int]:
        value = self._new()
        return [*x[0], *y[0], Instruction(code=Code.CALC, operands=(value, how, x[1], y[1]))], value

    def _test(self, node: ast.expr) -> Block:
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                return [x for part in parts for x in self._test(part)]
            case ast.BoolOp(op=ast.Or(), values=parts):
                return reduce(either, map(self._alternative, parts))
            case ast.Name(id=name):
                return self._compared(node, Relation.UNEQUAL, ast.Constant(0))
            case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=elements)]):
                return self._among(left, elements)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Name(id=name) as right]) if (
                name in DTYPE_CODES
            ):
                return self._among(left, [right])
            case ast.Compare(left=left, ops=[how], comparators=[right]):
                return self._compared(left, _RELATION[type(how)], right)
            case ast.Call(func=ast.Name(id="like"), args=[x, y, last]):
                block, value = self._value(last)
                return [*block, Instruction(code=Code.LIKE, operands=(self._tensor(x), self._tensor(y), value))]
            case ast.Call(func=ast.Name(id="strides"), args=[x, y]):
                return [Instruction(code=Code.STRIDES, operands=(self._tensor(x), self._tensor(y)))]
            case ast.Call(func=ast.Name(id=test), args=[*firsts, last]) if test in _PLACES:
                first = self._first(firsts[0]) if firsts else 0
                return [
                    Instruction(code=_PLACES[test], operands=(first, 1 << self._tensor(last, ArgumentKind.TENSORS)))
                ]
        raise ValueError(f"{ast.unparse(node)!r} is no test")

    def _alternative(self, node: ast.expr) -> Block:
        with self._branch():
            return self._test(node)

    def _compared(self, left: ast.expr, how: Relation, right: ast.expr) -> Block:
        if isinstance(left, ast.Name) and self._kinds.get(left.id) is ArgumentKind.FLOAT:
            (bits,) = struct.unpack("<q", struct.pack("<d", ast.literal_eval(right)))
            return [Instruction(code=Code.REAL, operands=(self._named(left.id), how, bits))]
        (first, x), (second, y) = self._value(left), self._value(right)
        return [*first, *second, Instruction(code=Code.COMPARE, operands=(x, how, y))]

    def _among(self, left: ast.expr, elements: list[ast.expr]) -> Block:
        match left:
            case ast.Call(func=ast.Name(id="dtype"), args=[tensor]):
                names = [ast.unparse(element) for element in elements]
                if unknown := [name for name in names if name not in DTYPE_CODES]:
                    raise ValueError(f"{unknown[0]!r} is no dtype, of {', '.join(DTYPE_CODES)}")
                codes = sum(1 << DTYPE_CODES[name] for name in names)
                return [Instruction(code=Code.DTYPE, operands=(self._tensor(tensor), codes))]
            case ast.Name(id=name) if self._kinds.get(name) is ArgumentKind.TEXT:
                self.words = tuple(map(ast.literal_eval, elements))
                value = self.values[f"{name}_index"] = self._new()
                return [Instruction(code=Code.WORD, operands=(value, self._named(name)))]
        return reduce(either, (self._compared(left, Relation.EQUAL, element) for element in elements))

    def _named(self, name: str) -> int:
        if name not in self.values:
            raise ValueError(f"{name!r} is neither an argument nor a size named before, of {', '.join(self.values)}")
        return self.values[name]

    def _first(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
        return self._tensor(node)

    def _tensor(self, node: ast.expr, *more: ArgumentKind) -> int:
        return self._argument(node, "tensor", ArgumentKind.TENSOR, *more)

    def _argument(self, node: ast.expr, what: str, *kinds: ArgumentKind) -> int:
        name = ast.unparse(node)
        if self._kinds.get(name) not in kinds:
            raise ValueError(f"{name!r} is no {what}, of {', '.join(self._kinds)}")
        return self.values[name]


def _terms(node: ast.expr) -> list[ast.expr]:
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]


def _is_place(step: Step) -> bool:
    return isinstance(step, Require) and step.test.partition("(")[0] in _PLACES and step.test.count("(") == 1


def _at_once(tests: Block) -> Block:
    masks: dict[tuple[Code, int], int] = {}
    for test in tests:
        first, mask = test.operands
        masks[test.code, first] = masks.get((test.code, first), 0) | mask
    return [Instruction(code=code, operands=(first, mask)) for (code, first), mask in masks.items()]


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
