"""Epilogues that come with gemmill, written and made as users' are: each has an op of its name, in every build."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from gemmill.gemm.traced import Kind, Traced
from gemmill.gemm.tracing import Column, ColumnOut, ColumnS32, Row, RowS32, Value, fma, trace
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """One epilogue."""

    function: Callable[..., Value]
    """Its op has the function's name, and its arguments after out, a and b."""
    operands: tuple[DType, ...]
    """Dtypes of a and b for which kernels are built: s8 alone, or floats."""
    with_others: Mapping[str, str] = field(default_factory=dict)
    """Inputs that mean nothing where another is left out, each with that one's name."""

    @cached_property
    def traced(self) -> Traced:
        """Its steps."""
        return trace(self.function, Kind.S32 if self.operands == (DType.S8,) else Kind.F32)


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


ALL = (BuiltIn(function=scaled_mm_zero_points, operands=(DType.S8,), with_others={"azp": "azp_adj"}),)
