"""The epilogues that come with gemmill, written as users write theirs."""

from collections.abc import Callable
from functools import cache

from gemmill.gemm.traced import Kind, Traced
from gemmill.gemm.tracing import Column, ColumnOut, ColumnS32, Row, RowS32, Value, fma, trace
from gemmill.vocab import EpilogueKind


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
    """An epilogue, of sums that are `accumulator`; without scales where the main loop applies them."""
    if with_scales:
        return trace(_OF_KIND[kind], accumulator)
    return trace(summed_bias if kind.takes_bias else summed, accumulator)
