"""Tracing an epilogue: gemmill calls the function once, with values that record the operations on them."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gemmill.gemm.traced import MOST_OF_A_KIND, Along, Input, Kind, Step, Stored, Traced

WHAT_CAN_BE = (
    "+ - * / of values and numbers, comparisons, and the functions of gemmill.epilogue (exp, tanh, where, fma, ...)"
)
_FUNCTION_HELP = "`gemmill.epilogue` has the functions that can be traced"


class UntraceableError(ValueError):
    """Why a function is no epilogue: one sentence, with the file and line of the fault."""


class _MisuseError(TypeError):
    """The wrong use of a value, and the remedy."""


@dataclass
class _Writer:
    """The steps, in the order in which they are done; the same step twice is one."""

    first: int
    """Number of the first step's value."""
    steps: list[Step] = field(default_factory=list)
    numbers: dict[Step, int] = field(default_factory=dict)

    def write(self, kind: Kind, word: str, *values: "Value", number: float = 0.0) -> "Value":
        for value in values:
            if value.writer is not self:
                raise _MisuseError("it uses a value of another trace; an epilogue's values end with it")
        step = Step(word, tuple(value.at for value in values), number)
        if step not in self.numbers:
            self.numbers[step] = self.first + len(self.steps)
            self.steps.append(step)
        return Value(self, self.numbers[step], kind)


class Value:
    """The accumulator, an element of a vector, a scalar, or a value computed from these, while gemmill traces an
    epilogue.
    """

    __slots__ = ("at", "kind", "writer")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, writer: _Writer, at: int, kind: Kind) -> None:
        self.writer, self.at, self.kind = writer, at, kind

    def __add__(self, other: "Value | float") -> "Value":
        return _arithmetic("add", self, other)

    def __radd__(self, other: float) -> "Value":
        return _arithmetic("add", other, self)

    def __sub__(self, other: "Value | float") -> "Value":
        return _arithmetic("sub", self, other)

    def __rsub__(self, other: float) -> "Value":
        return _arithmetic("sub", other, self)

    def __mul__(self, other: "Value | float") -> "Value":
        return _arithmetic("mul", self, other)

    def __rmul__(self, other: float) -> "Value":
        return _arithmetic("mul", other, self)

    def __truediv__(self, other: "Value | float") -> "Value":
        return _floats("div", self, other)

    def __rtruediv__(self, other: float) -> "Value":
        return _floats("div", other, self)

    def __neg__(self) -> "Value":
        return self.writer.write(_number(self).kind, "neg", self)

    def __abs__(self) -> "Value":
        return self.writer.write(_number(self).kind, "abs", self)

    def __lt__(self, other: "Value | float") -> "Value":
        return _compared("lt", self, other)

    def __le__(self, other: "Value | float") -> "Value":
        return _compared("le", self, other)

    def __gt__(self, other: "Value | float") -> "Value":
        return _compared("gt", self, other)

    def __ge__(self, other: "Value | float") -> "Value":
        return _compared("ge", self, other)

    def __eq__(self, other: object) -> "Value":  # type: ignore[override]
        return _compared("eq", self, other)

    def __ne__(self, other: object) -> "Value":  # type: ignore[override]
        return _compared("ne", self, other)

    def __bool__(self) -> bool:
        raise _MisuseError(
            "it uses a value as a condition (if, while, and, or, not); where(test, x, y) takes one of two"
        )

    def __float__(self) -> float:
        raise _MisuseError(f"it uses a value as a Python number, which it has not while it is traced; {_FUNCTION_HELP}")

    __int__ = __index__ = __complex__ = __float__

    def __iter__(self) -> Any:
        raise _MisuseError("it goes through a value as through a list; a value is one element")

    def __getitem__(self, at: object) -> Any:
        raise _MisuseError(
            "it takes an element of a value; a value is one element, of the row or column that is stored"
        )

    def __len__(self) -> int:
        raise _MisuseError("it asks for a value's length; a value is one element")

    def __pow__(self, other: object) -> "Value":
        raise _MisuseError("it uses **; multiply, or use exp and log")

    __rpow__ = __pow__

    def __getattr__(self, name: str) -> Any:
        raise _MisuseError(f"it asks a value for {name!r}, which it has not; {_FUNCTION_HELP}")


Row = Annotated[Value, Along.ROW, Stored.F32]
"""A float32 value of each row of D, or one for all: scales of a's rows."""
Column = Annotated[Value, Along.COLUMN, Stored.F32]
"""A float32 value of each column of D, or one for all: scales of b's columns."""
RowOut = Annotated[Value, Along.ROW, Stored.OUT]
"""A value of each row, of D's dtype."""
ColumnOut = Annotated[Value, Along.COLUMN, Stored.OUT]
"""A value of each column, of D's dtype: a bias."""
RowS32 = Annotated[Value, Along.ROW, Stored.S32]
"""An int32 value of each row."""
ColumnS32 = Annotated[Value, Along.COLUMN, Stored.S32]
"""An int32 value of each column."""
Scalar = Annotated[Value, Along.SCALAR, Stored.F32]
"""A number of each call."""
_TYPES = "Row, Column, RowOut, ColumnOut, RowS32, ColumnS32 or Scalar"


def _number(value: Value) -> Value:
    if value.kind is Kind.TRUTH:
        raise _MisuseError("it computes with the result of a comparison; where(test, x, y) takes one of two")
    return value


def _pair(x: Value | float, y: object) -> tuple[Value, Value]:
    """Both operands as values of one kind: a number takes the other's, int32 becomes float32 next to float32."""
    of = x if isinstance(x, Value) else y
    assert isinstance(of, Value)
    both = []
    for given, other in ((x, y), (y, x)):
        if isinstance(given, Value):
            both.append(_number(given))
            continue
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise _MisuseError(f"it computes with a {type(given).__name__}; there are values and Python's numbers")
        whole = isinstance(given, int) and isinstance(other, Value) and other.kind is Kind.S32
        kind = Kind.S32 if whole else Kind.F32
        both.append(of.writer.write(kind, "whole" if whole else "number", number=float(given)))
    if both[0].kind is not both[1].kind:
        both = [as_float(value) for value in both]
    return both[0], both[1]


def _arithmetic(word: str, x: Value | float, y: Value | float) -> Value:
    first, second = _pair(x, y)
    return first.writer.write(first.kind, word, first, second)


def _floats(word: str, x: Value | float, y: Value | float) -> Value:
    first, second = (as_float(value) for value in _pair(x, y))
    return first.writer.write(Kind.F32, word, first, second)


def _compared(word: str, x: Value, y: object) -> Value:
    first, second = _pair(x, y)
    return first.writer.write(Kind.TRUTH, word, first, second)


def _value(x: object, what: str) -> Value:
    if not isinstance(x, Value):
        raise _MisuseError(f"it calls {what} of a {type(x).__name__}; of numbers alone Python computes it")
    return _number(x)


def as_float(x: Value) -> Value:
    """An int32 value as float32, rounded to nearest; a float32 value as it is."""
    x = _value(x, "as_float")
    return x if x.kind is Kind.F32 else x.writer.write(Kind.F32, "float", x)


def fma(x: Value, y: Value, z: Value) -> Value:
    """x y + z, rounded once."""
    given = [as_float(value) for value in (x, y, z)]
    return given[0].writer.write(Kind.F32, "fma", *given)


def where(test: Value, x: Value | float, y: Value | float) -> Value:
    """x where a comparison holds, else y."""
    if not isinstance(test, Value) or test.kind is not Kind.TRUTH:
        raise _MisuseError("it calls where of a test that is no comparison of values")
    if not isinstance(x, Value) and not isinstance(y, Value):
        x = test.writer.write(Kind.F32, "number", number=float(x))
    first, second = _pair(x, y)
    return test.writer.write(first.kind, "where", test, first, second)


def minimum(x: Value | float, y: Value | float) -> Value:
    """The smaller; where one is NaN, the other."""
    return _arithmetic("min", x, y)


def maximum(x: Value | float, y: Value | float) -> Value:
    """The larger; where one is NaN, the other."""
    return _arithmetic("max", x, y)


def _function(word: str, doc: str) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        given = as_float(_value(x, word))
        return given.writer.write(Kind.F32, word, given)

    function.__name__ = function.__qualname__ = word
    function.__doc__ = doc
    return function


exp = _function("exp", "e to the x, float32.")
exp2 = _function("exp2", "2 to the x, float32.")
log = _function("log", "The natural logarithm, float32.")
tanh = _function("tanh", "The hyperbolic tangent, float32.")
erf = _function("erf", "The error function, float32.")
sqrt = _function("sqrt", "The square root, float32.")
rsqrt = _function("rsqrt", "1 / the square root, float32.")


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp(-as_float(x)))


def trace(function: Callable[..., Any], accumulator: Kind) -> Traced:
    """The operations of a function on an accumulator and its other arguments. Raises UntraceableError."""
    inputs = _inputs(function)
    writer = _Writer(first=1 + len(inputs))
    values = [Value(writer, 1 + at, given.stored.kind) for at, given in enumerate(inputs)]
    try:
        result = function(Value(writer, 0, accumulator), *values)
    except Exception as error:
        raise _refused(function, _line_of(function, error), _told(error)) from None
    first = function.__code__.co_firstlineno
    if not isinstance(result, Value) or result.kind is Kind.TRUTH:
        told = "a comparison" if isinstance(result, Value) else f"a {type(result).__name__}"
        raise _refused(function, first, f"it returns {told}; the value to store is expected")
    try:
        result = as_float(result)
    except _MisuseError as error:
        raise _refused(function, first, str(error)) from None
    return Traced(
        name=function.__name__, accumulator=accumulator, inputs=inputs, steps=tuple(writer.steps), result=result.at
    )


def _inputs(function: Callable[..., Any]) -> tuple[Input, ...]:
    code = getattr(function, "__code__", None)
    if code is None or not function.__name__.isidentifier():
        raise UntraceableError(f"{function!r} is no epilogue: a function with a name is expected, written in Python")
    first = code.co_firstlineno
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise _refused(function, first, f"its annotations cannot be read ({error})") from None
    parameters = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if (
        not parameters
        or any(p.kind not in plain for p in parameters)
        or parameters[0].default is not inspect.Parameter.empty
    ):
        raise _refused(function, first, "it takes the accumulator, then named arguments")
    inputs = []
    for parameter in parameters[1:]:
        told = get_args(hints.get(parameter.name)) if get_origin(hints.get(parameter.name)) is Annotated else ()
        if len(told) != 3 or not isinstance(told[1], Along) or not isinstance(told[2], Stored):
            raise _refused(function, first, f"argument {parameter.name!r} is annotated as none of {_TYPES}")
        if parameter.name in ("out", "a", "b"):
            raise _refused(function, first, f"an argument is called {parameter.name!r}, as one of the op's own")
        inputs.append(Input(parameter.name, told[1], told[2], _absent(function, parameter, told[1], told[2])))
    for along in Along:
        if (count := sum(given.along is along for given in inputs)) > MOST_OF_A_KIND:
            raise _refused(
                function, first, f"it has {count} arguments along {along}; a kernel takes {MOST_OF_A_KIND} of each"
            )
    return tuple(inputs)


def _absent(function: Callable[..., Any], parameter: inspect.Parameter, along: Along, stored: Stored) -> float | None:
    """The number that stands for each value of a vector which a call may leave out."""
    default = parameter.default
    if default is parameter.empty:
        return None
    is_whole = isinstance(default, int) and not isinstance(default, bool) and -(2**31) <= default < 2**31
    is_number = isinstance(default, float) and isfinite(default) and stored is not Stored.S32
    if along is Along.SCALAR or not (is_whole or is_number):
        why = f"argument {parameter.name!r} has the default {default!r}; a vector can have a number, of int32 values a whole one"
        raise _refused(function, function.__code__.co_firstlineno, why)
    return float(default)


def _told(error: Exception) -> str:
    if isinstance(error, _MisuseError):
        return str(error)
    return f"it raises {type(error).__name__} ({error}); it may use {WHAT_CAN_BE}"


def _line_of(function: Callable[..., Any], error: Exception) -> int:
    """The line of the function's own file that ran last."""
    own = function.__code__.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return lines[-1] if lines and lines[-1] else function.__code__.co_firstlineno


def _refused(function: Callable[..., Any], line: int, why: str) -> UntraceableError:
    file = function.__code__.co_filename
    text = linecache.getline(file, line).strip()
    at = f"{file}, line {line}" + (f": `{text}`" if text else "")
    return UntraceableError(f"epilogue {function.__name__!r} cannot be traced ({at}): {why}")
