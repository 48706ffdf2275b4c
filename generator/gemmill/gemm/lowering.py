"""Steps of an epilogue as operations of the DSL."""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from gemmill.gemm.traced import Along, Kind, Stored

TYPE_OF = {Kind.F32: Float32, Kind.S32: Int32}


def element_type_of(stored):
    """The type that an input's elements have in shared memory."""
    return TYPE_OF[Kind.S32 if stored is Stored.S32 else Kind.F32]


def finished(traced, total, of_row: tuple, of_column: tuple, scalars: tuple):
    """The value that an epilogue makes of a sum, its row's and column's inputs, and the scalars."""
    sides = {Along.ROW: iter(of_row), Along.COLUMN: iter(of_column), Along.SCALAR: iter(scalars)}
    values = [(total, traced.accumulator)]
    for given in traced.inputs:
        values.append((next(sides[given.along]), Kind.S32 if given.stored is Stored.S32 else Kind.F32))
    for step in traced.steps:
        if step.word == "float":
            values.append((values[step.of[0]][0].to(Float32), Kind.F32))
        elif step.word == "number":
            values.append((Float32(step.number), Kind.F32))
        elif step.word == "whole":
            values.append((Int32(int(step.number)), Kind.S32))
        else:
            values.append(computed(step.word, values, step.of))
    value, kind = values[traced.result]
    return value.to(TYPE_OF[kind])


def computed(word: str, values: list, of: tuple) -> tuple:
    """The value of one step, and its kind. Values that are stored in 16 bits widen where they are used."""
    kind = values[of[-1]][1]
    given = []
    for at in of:
        value, own = values[at]
        if own is not Kind.TRUTH:
            value = value.to(TYPE_OF[own])
            values[at] = (value, own)
        given.append(value)
    if word in COMPARISONS:
        return COMPARISONS[word](*given), Kind.TRUTH
    if word in FLOAT_LIMITS and kind is Kind.F32:
        return limit(FLOAT_LIMITS[word], *given), kind
    return TYPE_OF[kind](OPERATIONS[word](*given)), kind


def limit(instruction: str, x: Float32, y: Float32) -> Float32:
    """The smaller or larger; where one is NaN, the other."""
    return cute.arch.inline_ptx(
        f"{instruction} {{$w0}}, {{$r0}}, {{$r1}};", write_only_types=[Float32], read_only_args=[x, y]
    )


FLOAT_LIMITS = {"min": "min.f32", "max": "max.f32"}
COMPARISONS = {
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}
OPERATIONS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": lambda x: cutlass.select_(x < 0, -x, x) if isinstance(x, Int32) else cute.math.absf(x),
    "min": lambda x, y: cutlass.min(x, y),
    "max": lambda x, y: cutlass.max(x, y),
    "fma": lambda x, y, z: cute.math.fma(x, y, z),
    "where": lambda test, x, y: cutlass.select_(test, x, y),
    "exp": lambda x: cute.math.exp(x),
    "exp2": lambda x: cute.math.exp2(x),
    "log": lambda x: cute.math.log(x),
    "tanh": lambda x: cute.math.tanh(x),
    "erf": lambda x: cute.math.erf(x),
    "sqrt": lambda x: cute.math.sqrt(x),
    "rsqrt": lambda x: cute.math.rsqrt(x),
}
