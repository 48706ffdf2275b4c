"""Epilogues as users write them, of every kind of input, and the kernels and cases that they have."""

from typing import cast

from gemmill.epilogue import (
    Column,
    ColumnOut,
    ColumnS32,
    Epilogue,
    Row,
    RowOut,
    RowS32,
    Scalar,
    Value,
    as_float,
    epilogue,
    erf,
    exp,
    exp2,
    fma,
    log,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    where,
)
from gemmill.families.scaled_mm import own, selections
from gemmill.families.scaled_mm.cases.own import OwnCase, of_config
from gemmill.vocab import Arch, Backend


@epilogue
def everything(
    acc: Value,
    a_scale: Row,
    shift: RowS32,
    gain: RowOut,
    b_scale: Column,
    bias: ColumnOut,
    other: ColumnS32,
    alpha: Scalar,
    limit: Scalar,
) -> Value:
    x = fma(a_scale, (acc - shift * other) * b_scale, bias) * gain
    x = minimum(maximum(x, -limit), limit)
    y = where(x > alpha, x * sigmoid(alpha * x), tanh(x) / (1 + abs(x)))
    z = where(x != 0, rsqrt(abs(x) + 1), exp(-abs(x)))
    return y + erf(x) * sqrt(abs(x)) - log(1 + exp2(-abs(x))) + z


_ONE, _HALF = cast(Value, 1), cast(Value, 0.5)


@epilogue(operands=("s8",), results=("bf16", "f16"))
def integers(
    acc: Value, a_scale: Row, b_scale: Column, sums: ColumnS32, zero: RowS32 = _ONE, bias: ColumnOut = _HALF
) -> Value:
    return fma(a_scale, as_float(maximum(acc - zero * sums, 3)) * b_scale, bias)


@epilogue
def biased(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut) -> Value:
    return fma(a_scale, acc * b_scale, bias)


@epilogue(results=("e4m3", "bf16"))
def codes(acc: Value, a_scale: Row, b_scale: Column, inverse: Scalar) -> Value:
    x = a_scale * (acc * b_scale)
    return x * sigmoid(x) * inverse


OWN = (everything, integers, biased, codes)


def kernels(of: Epilogue, arch: Arch = Arch.SM90A) -> list[own.OwnConfig]:
    return list(selections.with_epilogue(of.traced.text, of.operands, of.results, arch))  # type: ignore[arg-type]


def configs(of: Epilogue) -> list[own.OwnConfig]:
    return [config for config in kernels(of) if config.backend is Backend.CUTEDSL]


def visitors(of: Epilogue, arch: Arch = Arch.SM90A) -> list[own.OwnConfig]:
    return [config for config in kernels(of, arch) if config.backend is Backend.CUTLASS]


def cases(of: Epilogue) -> list[OwnCase]:
    return list(of_config(configs(of)[0]))
