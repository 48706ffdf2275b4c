"""The epilogues that come with gemmill, written as users write theirs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import cast

from gemmill.gemm.traced import Kind, Traced
from gemmill.gemm.tracing import Column, ColumnOut, ColumnS32, Row, RowS32, Value, fma, trace
from gemmill.vocab import DType, EpilogueKind


def scaled(acc: Value, a_scale: Row, b_scale: Column) -> Value:
    """s_a s_b acc"""
    return a_scale * (acc * b_scale)


def scaled_bias(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut) -> Value:
    """s_a s_b acc + bias"""
    return fma(a_scale, acc * b_scale, bias)


def scaled_azp(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut, azp_adj: ColumnS32) -> Value:
    """s_a s_b (acc - azp_adj) + bias"""
    return fma(a_scale, (acc - azp_adj) * b_scale, bias)


def scaled_azp_per_token(
    acc: Value, a_scale: Row, azp: RowS32, b_scale: Column, bias: ColumnOut, azp_adj: ColumnS32
) -> Value:
    """s_a s_b (acc - azp x azp_adj) + bias"""
    return fma(a_scale, (acc - azp_adj * azp) * b_scale, bias)


_NONE, _AS_THEY_ARE = cast(Value, 0), cast(Value, 1)


def scaled_mm_zero_points(
    acc: Value,
    a_scales: Row,
    b_scales: Column,
    a_sums: RowS32,
    b_zp: ColumnS32,
    azp_adj: ColumnS32 = _NONE,
    azp: RowS32 = _AS_THEY_ARE,
    bias: ColumnOut = _NONE,
) -> Value:
    """s_a s_b (acc - azp x azp_adj - a_sums x b_zp) + bias"""
    return fma(a_scales, (acc - azp_adj * azp - b_zp * a_sums) * b_scales, bias)


def summed(acc: Value) -> Value:
    """acc, where there are no scales or the main loop has applied them"""
    return acc


def summed_bias(acc: Value, bias: ColumnOut) -> Value:
    """acc + bias"""
    return acc + bias


_OF_KIND: dict[EpilogueKind, Callable[..., Value]] = {
    EpilogueKind.SCALED: scaled,
    EpilogueKind.SCALED_BIAS: scaled_bias,
    EpilogueKind.SCALED_AZP: scaled_azp,
    EpilogueKind.SCALED_AZP_PER_TOKEN: scaled_azp_per_token,
}


@cache
def standard(kind: EpilogueKind, accumulator: Kind, *, with_scales: bool) -> Traced:
    """An epilogue, of sums that are `accumulator`; without scales where these are applied elsewhere."""
    if with_scales:
        return trace(_OF_KIND[kind], accumulator)
    return trace(summed_bias if kind.takes_bias else summed, accumulator)


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """An epilogue that comes with gemmill, with an op of its name, made as users' epilogues are."""

    function: Callable[..., Value]
    operands: tuple[DType, ...]
    """Dtypes of a and b for which kernels are built: s8 alone, or floats."""
    with_others: Mapping[str, str] = field(default_factory=dict)
    """Inputs that mean nothing where another is left out, each with that one's name."""

    @cached_property
    def traced(self) -> Traced:
        """Its steps."""
        return trace(self.function, Kind.S32 if self.operands == (DType.S8,) else Kind.F32)


BUILT_IN = (BuiltIn(function=scaled_mm_zero_points, operands=(DType.S8,), with_others={"azp": "azp_adj"}),)
