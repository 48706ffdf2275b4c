"""Functions that become epilogues: their steps, and functions that cannot be traced, with the line."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.epilogue import (
    Row,
    RowS32,
    Scalar,
    UntraceableError,
    Value,
    epilogue,
    where,
)
from gemmill.gemm.traced import Kind, all_known, known, of_text
from gemmill.gemm.tracing import trace
from gemmill.registry import REGISTRY
from own_epilogues import OWN, biased, everything

HERE = Path(__file__)


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(HERE.read_text().splitlines(), 1) if line.strip() == text)


def test_a_trace_is_its_text() -> None:
    for of in OWN:
        assert of_text(of.traced.text) == of.traced == known(of.traced.key)
    assert biased.traced.steps[0].word == "mul" and len(biased.traced.steps) == 2
    assert everything.traced.digest != biased.traced.digest
    with pytest.raises(ValueError, match=r"^'\{\}' is no traced epilogue: KeyError: 'name'$"):
        of_text("{}")
    with pytest.raises(ValueError, match=r"^epilogue 'nonexdeadbeef' is not known here: import the module"):
        known("nonexdeadbeef")


def test_the_same_step_is_done_once() -> None:
    def twice(acc: Value, scale: Row) -> Value:
        return acc * scale + acc * scale

    assert [step.word for step in trace(twice, Kind.F32).steps] == ["mul", "add"]


def test_the_digest_follows_steps_and_names() -> None:
    def one(acc: Value, scale: Row) -> Value:
        return acc * scale

    def other(acc: Value, scale: Row) -> Value:
        return scale * acc

    first = trace(one, Kind.F32)
    assert trace(one, Kind.F32).digest == first.digest
    assert trace(other, Kind.F32).digest != first.digest
    assert replace(first, inputs=(replace(first.inputs[0], name="scales"),)).digest != first.digest


def condition(acc: Value, scale: Row) -> Value:
    if acc * scale > 0:
        return acc
    return scale


def number(acc: Value) -> Value:
    return math.exp(acc)  # type: ignore[arg-type,return-value]


def method(acc: Value) -> Value:
    return acc.relu()  # type: ignore[no-any-return]


def power(acc: Value) -> Value:
    return acc**2


def listed(acc: Value) -> Value:
    return sum(acc)  # type: ignore[call-overload,no-any-return]


def text(acc: Value) -> Value:
    return acc * "2"  # type: ignore[operator]


def chosen(acc: Value) -> Value:
    return where(acc, acc, 0.0)


def truth(acc: Value) -> Value:
    return (acc > 0) + 1.0


def nothing(acc: Value) -> Value:
    acc + 1
    return None  # type: ignore[return-value]


def compared(acc: Value) -> Value:
    return acc > 0


def raised(acc: Value) -> Value:
    return {}["key"]  # type: ignore[no-any-return]


def plain_argument(acc: Value, scale: float) -> Value:
    return acc * scale


def with_default(acc: Value, scale: Scalar = 1.0) -> Value:  # type: ignore[assignment]
    return acc * scale


def with_part(acc: Value, zero: RowS32 = 0.5) -> Value:  # type: ignore[assignment]
    return acc - zero


def called_out(acc: Value, out: Row) -> Value:
    return acc * out


def five(acc: Value, p: Row, q: Row, r: Row, s: Row, t: Row) -> Value:
    return acc * p * q * r * s * t


REFUSED: dict[Callable[..., Any], tuple[str, str]] = {
    condition: (
        "if acc * scale > 0:",
        "it uses a value as a condition (if, while, and, or, not); where(test, x, y) takes one of two",
    ),
    number: (
        "return math.exp(acc)  # type: ignore[arg-type,return-value]",
        "it uses a value as a Python number, which it has not while it is traced; `gemmill.epilogue` has the functions that can be "
        "traced",
    ),
    method: (
        "return acc.relu()  # type: ignore[no-any-return]",
        "it asks a value for 'relu', which it has not; `gemmill.epilogue` has the functions that can be traced",
    ),
    power: ("return acc**2", "it uses **; multiply, or use exp and log"),
    listed: (
        "return sum(acc)  # type: ignore[call-overload,no-any-return]",
        "it goes through a value as through a list; a value is one element",
    ),
    text: (
        'return acc * "2"  # type: ignore[operator]',
        "it computes with a str; there are values and Python's numbers",
    ),
    chosen: ("return where(acc, acc, 0.0)", "it calls where of a test that is no comparison of values"),
    truth: (
        "return (acc > 0) + 1.0",
        "it computes with the result of a comparison; where(test, x, y) takes one of two",
    ),
    nothing: ("def nothing(acc: Value) -> Value:", "it returns a NoneType; the value to store is expected"),
    compared: ("def compared(acc: Value) -> Value:", "it returns a comparison; the value to store is expected"),
    raised: (
        'return {}["key"]  # type: ignore[no-any-return]',
        "it raises KeyError ('key'); it may use + - * / of values and numbers, comparisons, and the functions of gemmill.epilogue (exp, "
        "tanh, where, fma, ...)",
    ),
    plain_argument: (
        "def plain_argument(acc: Value, scale: float) -> Value:",
        "argument 'scale' is annotated as none of Row, Column, RowOut, ColumnOut, RowS32, ColumnS32 or Scalar",
    ),
    with_default: (
        "def with_default(acc: Value, scale: Scalar = 1.0) -> Value:  # type: ignore[assignment]",
        "argument 'scale' has the default 1.0; a vector can have a number, of int32 values a whole one",
    ),
    with_part: (
        "def with_part(acc: Value, zero: RowS32 = 0.5) -> Value:  # type: ignore[assignment]",
        "argument 'zero' has the default 0.5; a vector can have a number, of int32 values a whole one",
    ),
    called_out: (
        "def called_out(acc: Value, out: Row) -> Value:",
        "an argument is called 'out', as one of the op's own",
    ),
    five: (
        "def five(acc: Value, p: Row, q: Row, r: Row, s: Row, t: Row) -> Value:",
        "it has 5 arguments along row; a kernel takes 4 of each",
    ),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_cannot_be_traced_is_named_with_its_line(function: Callable[..., Any]) -> None:
    at, why = REFUSED[function]
    with pytest.raises(UntraceableError) as told:
        epilogue(function)
    where_it_is = f"({HERE}, line {line_of(at)}: `{at}`)"
    assert str(told.value) == f"epilogue {function.__name__!r} cannot be traced {where_it_is}: {why}"


def test_a_value_of_another_trace_is_refused() -> None:
    kept: list[Value] = []

    def keeps(acc: Value) -> Value:
        kept.append(acc)
        return acc

    def uses(acc: Value) -> Value:
        return acc + kept[0]

    trace(keeps, Kind.F32)
    with pytest.raises(UntraceableError, match="it uses a value of another trace"):
        trace(uses, Kind.F32)


def test_dtypes_that_no_kernel_has() -> None:
    def product(acc: Value) -> Value:
        return acc

    with pytest.raises(ValueError, match=r"^epilogue 'product' is for operands e4m3, s8: it is s8 alone"):
        epilogue(operands=("e4m3", "s8"))(product)
    with pytest.raises(ValueError, match=r"^epilogue 'product' is for results f32: kernels store bf16, f16 and e4m3$"):
        epilogue(results=("f32",))(product)
    with pytest.raises(
        ValueError,
        match=r"^epilogue 'product' is for operands bf16 and results e4m3: e4m3 is stored of e4m3 operands alone$",
    ):
        epilogue(operands=("bf16",), results=("e4m3",))(product)


def test_names_that_a_schema_cannot_have() -> None:
    """An op of such a schema cannot be defined, and no other op of its namespace after it."""

    def of_argument(acc: Value, größe: Row) -> Value:
        return acc * größe

    def größer(acc: Value, scale: Row) -> Value:
        return acc * scale

    def of_torch(acc: Value, NoneType: Row) -> Value:
        return acc * NoneType

    for function, name in ((of_argument, "größe"), (größer, "größer"), (of_torch, "NoneType")):
        before = set(all_known()), set(REGISTRY.ops)
        with pytest.raises(ValueError) as told:
            epilogue(function)
        assert str(told.value) == (
            f"epilogue {function.__name__!r} has the name {name!r}, which schemas of torch's ops cannot have: use letters of ASCII, "
            "digits and _"
        )
        assert (set(all_known()), set(REGISTRY.ops)) == before
