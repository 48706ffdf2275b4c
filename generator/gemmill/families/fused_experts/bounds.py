"""How far a right kernel may be from the reference, element by element, from the arithmetic of the hardware.

Instructions for operands of 16 bits, to which e4m3 is converted, compute both products (`gemmill.arithmetic`). An
instruction adds 16 products and loses at most 19 units of 2^-23 of the largest sum. The sum of all magnitudes is never
below that sum. Sums leave the tensor core every 128 bytes along K, so at most 8 instructions add up. Then each step,
slice, scale, bias and weight rounds once to float32. Sums of packed weights stay on the tensor core along all of K. Of
2:4 sparse weights an instruction adds 16 products, too. Folded and streamed weights multiply as e4m3, whose sums are
FP22. Streamed ones have scales in groups, and kernels of warps may serve the same call: its bound has the losses of
both. Grouped GEMMs and streamed kernels round both products to x's dtype before biases and weights, and sums of 16-bit operands stay on the
tensor core there, too.

A gate and an up lie between the rounded values of the lowest and the highest sum. A result lies within `slack_of` of
the reference's. Its code times its scale lies between those of the two ends. The second product's error has two terms.
One is the error of its operand times the magnitudes of W2. The other is the loss of the second product's own sums.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT, OF_16_BITS, OF_E4M3, half_unit_in_last_place, lost_in_sum
from gemmill.families.fused_experts import reference
from gemmill.families.fused_experts.reference import Layer, Rows
from gemmill.formats.gating import encode, group_scales, slack_of
from gemmill.formats.layout import STAGE_COLUMNS

_INSTRUCTIONS, _STEP_BYTES, _ROUNDINGS = 8, 128, 24
"""Instructions of a step of the main loop; bytes of a step along K; roundings of the addition of slices and of an
epilogue.
"""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The expected results of a call. Each tensor is [tokens, hidden]."""

    rounded: Tensor
    """The reference's result, in x's dtype."""
    exact: Tensor
    """The unrounded result, float64."""
    bound: Tensor
    """How far from `exact` a right result may be, float64."""


def judged(layer: Layer, added_to: Tensor | None, *, exactly: bool) -> Judged:
    """The expected result of a layer's call; `added_to`, [tokens, hidden], is its initial value.

    `exactly` says that the first product is the same in every order of summation.
    """
    exact = layer.x.new_zeros(layer.x.shape, dtype=torch.float64)
    error, magnitude = exact.clone(), exact.clone()
    if added_to is not None:
        exact += added_to.double()
        magnitude += exact.abs()
    for rows in reference.rows_of(layer):
        part, part_error = _part(layer, rows, exactly=exactly)
        exact.index_put_((rows.tokens,), part, accumulate=True)
        error.index_put_((rows.tokens,), part_error, accumulate=True)
        magnitude.index_put_((rows.tokens,), part.abs(), accumulate=True)
    error = error + (layer.topk_ids.shape[1] + 1) * FLOAT32_UNIT * (magnitude + error)
    bound = error + half_unit_in_last_place(exact.abs() + error, layer.x.dtype)
    return Judged(rounded=reference.fused_experts(layer, added_to), exact=exact, bound=bound)


def _part(layer: Layer, rows: Rows, *, exactly: bool) -> tuple[Tensor, Tensor]:
    """An expert's part of the result, float64 [M, hidden], and how far a kernel's may be from it."""
    values, error = reference.results(layer, rows), _inner_error(layer, rows)
    exactly = exactly and not _rounds_first_product(layer)
    sums, dtype = reference.inner_products(layer, rows).double(), layer.x.dtype
    rounded = sums.float().to(dtype)
    spread = torch.maximum(
        (sums + error).float().to(dtype).double() - rounded, rounded - (sums - error).float().to(dtype).double()
    )
    slack = slack_of(
        values,
        layer.gate_and_up(rounded),
        None if exactly else layer.gate_and_up(spread),
        layer.activation,
        layer.numbers,
    )
    operand, off = _operand(layer, values, slack)
    w2, scales = layer.w2[rows.weights].double(), None if layer.w2_scales is None else layer.w2_scales[rows.weights]
    if scales is not None:
        w2 = w2 * _spread_scales(scales, w2, layer.group)
    total = operand @ w2.t()
    lost = off @ w2.abs().t() + _lost_of_sums(layer, operand, off, w2)
    if layer.may_round_products:
        lost = lost + half_unit_in_last_place(total.abs() + lost, layer.x.dtype)
    if layer.w2_bias is not None:
        bias = layer.w2_bias[rows.weights].double()
        total, lost = total + bias, lost + FLOAT32_UNIT * _ROUNDINGS * bias.abs()
    if not layer.weight_on_input:
        weight = reference.weights_of(layer, rows).double()
        total, lost = total * weight, lost * weight.abs()
    if layer.may_round_parts:
        lost = lost + half_unit_in_last_place(total.abs() + lost, layer.x.dtype)
    return total, lost


def _inner_error(layer: Layer, rows: Rows) -> Tensor:
    """How far sums of the first product may be off, float64 [M, 2 inner]."""
    x, w13 = layer.x[rows.tokens], layer.w13[rows.weights].double()
    if layer.is_coded:
        codes, scales = reference.coded(x.float(), layer.group)
        a = codes.double() * scales.double().repeat_interleave(layer.group or x.shape[1], dim=1)[:, : x.shape[1]]
        if layer.w13_scales is not None:
            w13 = w13 * _spread_scales(layer.w13_scales[rows.weights], w13, layer.group)
    else:
        a = x.double()
    lost = _lost_of_sums(layer, a, torch.zeros_like(a), w13)
    if _rounds_first_product(layer):
        lost = lost + half_unit_in_last_place((a @ w13.t()).abs() + lost, layer.x.dtype)
    if layer.w13_bias is not None:
        lost = lost + FLOAT32_UNIT * _ROUNDINGS * layer.w13_bias[rows.weights].double().abs()
    weight = reference.weights_of(layer, rows).double().abs() if layer.weight_on_input else 1.0
    return lost * weight


def _rounds_first_product(layer: Layer) -> bool:
    """Whether the first product may be rounded once more than the reference does it: before a bias, or a weight on the input."""
    return layer.may_round_products and (layer.w13_bias is not None or layer.weight_on_input)


def _lost_of_sums(layer: Layer, a: Tensor, off: Tensor, weights: Tensor) -> Tensor:
    """The possible loss of sums of a [M, K], which may be `off`, times weights [N, K], float64 [M, N]."""
    magnitude, k = (a.abs() + off) @ weights.abs().t(), weights.shape[1]
    lost = magnitude * (_ROUNDINGS * FLOAT32_UNIT if layer.is_folded else _lost(layer, k))
    if not layer.may_sum_e4m3:
        return lost
    promoted = layer.group or None
    instructions = -(-min(k, promoted or k) // OF_E4M3.instruction_k)
    more = instructions * OF_E4M3.losses * OF_E4M3.unit * (off @ weights.abs().t())
    return lost_in_sum(a, weights.t(), OF_E4M3, promoted_k=promoted) + more + lost


def _lost(layer: Layer, k: int) -> float:
    """The fraction of the sum of all magnitudes that a kernel of 16-bit instructions may lose."""
    if layer.is_packed:
        steps = -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // OF_16_BITS.instruction_k
        return steps * OF_16_BITS.losses * OF_16_BITS.unit + _ROUNDINGS * FLOAT32_UNIT
    if layer.may_round_products and not layer.is_coded:
        return -(-k // OF_16_BITS.instruction_k) * OF_16_BITS.losses * OF_16_BITS.unit + _ROUNDINGS * FLOAT32_UNIT
    steps = -(-k * layer.w13.element_size() // _STEP_BYTES)
    return _INSTRUCTIONS * OF_16_BITS.losses * OF_16_BITS.unit + (steps + _ROUNDINGS) * FLOAT32_UNIT


def _spread_scales(scales: Tensor, w: Tensor, group: int) -> Tensor:
    """One expert's scales in float64: [rows, K] of scales in groups, else [rows, 1]."""
    if not group:
        return scales.reshape(-1, 1).double()
    whole = scales.repeat_interleave(group, dim=0).repeat_interleave(group, dim=1)
    return whole[: w.shape[0], : w.shape[1]].double()


def _operand(layer: Layer, values: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """The operand of the second product, with its scales, float64 [M, inner], and how far a kernel's may be from it."""
    low, high = (values.double() - slack).float(), (values.double() + slack).float()
    if not layer.is_coded:
        own, least, most = (x.to(layer.x.dtype).double() for x in (values, low, high))
        return own, torch.maximum(most - own, own - least)
    size = layer.group or values.shape[1]
    codes, scales = reference.coded(values, layer.group)
    smallest = torch.where((low > 0) | (high < 0), torch.minimum(low.abs(), high.abs()), 0.0)
    own, below, above = (
        s.repeat_interleave(size, dim=1)[:, : values.shape[1]]
        for s in (scales, group_scales(smallest, size), group_scales(torch.maximum(low.abs(), high.abs()), size))
    )
    told = codes.double() * own.double()
    ends = [
        encode(end / by).double() * times.double()
        for end in (low, high)
        for by, times in ((below, above), (above, below))
    ]
    off = torch.stack([(end - told).abs() for end in ends]).amax(dim=0)
    return told, off
