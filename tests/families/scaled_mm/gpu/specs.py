"""Which calls a variant must take, by the words of its predicate, and specs cut to such calls."""

from dataclasses import replace

import torch

from gemmill.arithmetic import half_unit_in_last_place
from gemmill.families.scaled_mm.accepts import Predicate
from gemmill.families.scaled_mm.cases.calls import Call, CallSpec, bound_of, expected_of
from gemmill.families.scaled_mm.reference import groups_of
from gemmill.families.scaled_mm.scales import lies_for_tma
from gemmill.runtime.operands import of_tensor
from gemmill.vocab import Accumulation, ScaleLayout

MUST, MAY, REFUSES = "must", "may", "refuses"


def acceptance(predicate: Predicate, call: Call) -> str:
    """Whether a variant must take a call, refuse it, or may do either but never answer wrong."""
    p = call.spec
    if p.op not in predicate.ops or p.a_dtype is not predicate.a_dtype or p.out_dtype is not predicate.out_dtype:
        return REFUSES
    if (p.bias and not predicate.bias) or p.azp not in predicate.azp:
        return REFUSES
    groups = groups_of(call.a, call.b, call.a_scales, call.b_scales)
    if groups != predicate.scale_groups and 0 not in (p.m, p.n):
        alike = p.k == 0 or p.n == 1  # scales of a single column, or of no group along K, fit more than one granularity
        return MAY if alike else REFUSES
    if predicate.scale_layout is ScaleLayout.MN_MAJOR and not lies_for_tma(of_tensor(call.a_scales)):
        return MAY if 0 in (p.m, p.n) else REFUSES
    if 0 in (p.m, p.n, p.k):
        return MAY
    operands = (
        (call.a, p.k, predicate.alignment_a),
        (call.b.t(), p.k, predicate.alignment_b),
        (call.out, p.n, predicate.alignment_d),
    )
    if any(matrix.data_ptr() % (alignment * matrix.element_size()) for matrix, _, alignment in operands):
        return REFUSES
    if any(matrix.shape[0] > 1 and matrix.stride(0) % alignment for matrix, _, alignment in operands):
        return REFUSES
    # A stride that is never used, or a row that ends between two aligned elements.
    if any(matrix.stride(0) % alignment or extent % alignment for matrix, extent, alignment in operands):
        return MAY
    return MUST


def of_variant(predicate: Predicate, spec: CallSpec) -> CallSpec:
    """The spec in a variant's types, without arguments that it does not take."""
    azp = spec.azp
    if azp not in predicate.azp:
        azp = predicate.azp[-1]
    bias = spec.bias and predicate.bias
    a_scale = "one" if predicate.scale_layout is ScaleLayout.MN_MAJOR else spec.a_scale
    return replace(
        spec,
        a_dtype=predicate.a_dtype,
        out_dtype=predicate.out_dtype,
        groups=predicate.scale_groups,
        a_scale=a_scale,
        azp=azp,
        bias=bias,
    )


def sum_error_fraction(call: Call, accumulation: Accumulation) -> float:
    """Largest error beyond the rounding of the stored result, as a fraction of the bound beyond it."""
    _, exact = expected_of(call.spec, call.out.device)
    if exact is None or not call.out.numel():
        return 0.0
    bound = bound_of(call.spec, accumulation, call.out.device)
    rounding = half_unit_in_last_place(exact.abs(), call.out.dtype)
    beyond = (call.out.to(torch.float64) - exact).abs() - rounding
    return float((beyond / (bound - rounding)).max())
