"""How far a right kernel may be from the exact result, element by element, from the arithmetic of the hardware.

s8: nothing is lost in the sum, and the reference repeats the epilogue's roundings. So the tolerance is zero.

e4m3 on Hopper: a tensor-core instruction adds 32 products and the running sum as fixed-point numbers. They share the
largest one's exponent and keep 13 bits below it (FP22: 1 sign, 8 exponent and 13 fraction bits). It cuts off the rest.
Each of the 33 terms so loses less than 2^-13 of the largest, and the result is within that form. So an instruction adds
at most 33 x 2^-13 x max(|sum before it|, sum of the |products| of its 32) to the error. `fast` leaves the sum in that
form over the whole of K. `promoted` adds it to a float32 register every 128 along K (2^-24 of the register each time)
and starts from zero. The bound follows these steps along K with the true partial sums. To assume the worst partial sum
for all of them would hide every fault. Over the whole of K it is wide all the same: `gemmill.numerics.exact` has
operands that need none.

bf16 and f16 on Hopper: see `gemmill.arithmetic`.

With scales in groups along K, at most one group stays in the tensor core, whatever the name of the accumulation. The
kernel multiplies its sum by both scales and adds it to a float32 register. That is at most three roundings of the
addend, and one of the register. The three are the scales' product, the product with the sum, and one more where the
order is another. In whatever order the kernel adds the groups, no partial sum is beyond the sum of their magnitudes.
Adding slices of K at the end costs a rounding each, and there are fewer of them than groups. A group of s8 sums to 2^21
at most, which float32 holds.

After the sum: its rounding to float32, b's scale, a's scale and the bias are four roundings of 2^-24. Storing costs
half a unit in the last place of the output's type.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gemmill.arithmetic import (
    FLOAT32_UNIT,
    OF_16_BITS,
    OF_E4M3,
    half_unit_in_last_place,
    lost_in_sum,
    scaled_error,
)
from gemmill.families.scaled_mm.reference import (
    check_scales,
    each_group,
    exact_group_scaled_mm,
    groups_of,
    inputs_of,
    stored_as,
)
from gemmill.gemm.traced import Kind, Traced
from gemmill.vocab import Accumulation, ScaleGroups

TENSOR_CORES = {
    torch.float8_e4m3fn: OF_E4M3,
    torch.bfloat16: OF_16_BITS,
    torch.float16: OF_16_BITS,
}
PROMOTION_K = 128
GROUP_ROUNDINGS = 3
"""Roundings of one group's part of the sum, before its addition."""


def exact_scaled_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """The result before any rounding, float64 [M, N], from which `tolerance` is a distance. Arguments as in scaled_mm."""
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return exact_group_scaled_mm(a, b, a_scales, b_scales, groups, bias)
    check_scales(a, b, a_scales, b_scales)
    result = _scales(a_scales, b_scales) * (a.to(torch.float64) @ b.to(torch.float64))
    return result if bias is None else result + bias.reshape(1, -1).to(torch.float64)


def _scales(a_scales: Tensor, b_scales: Tensor) -> Tensor:
    return a_scales.reshape(-1, 1).to(torch.float64) * b_scales.reshape(1, -1).to(torch.float64)


def accumulation_error(a: Tensor, b: Tensor, accumulation: Accumulation) -> Tensor:
    """Bound on the error of the unscaled sum a b, float64 [M, N]; NaN where the sum is NaN."""
    if accumulation is Accumulation.EXACT:
        return torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    promoted_k = PROMOTION_K if accumulation is Accumulation.PROMOTED else None
    return lost_in_sum(a.to(torch.float64), b.to(torch.float64), TENSOR_CORES[a.dtype], promoted_k=promoted_k)


def tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    accumulation: Accumulation,
    bias: Tensor | None = None,
    sum_error: Tensor | None = None,
) -> Tensor:
    """The largest |kernel - exact_scaled_mm| of a right kernel, float64 [M, N]. Arguments are those of scaled_mm.

    `sum_error` is accumulation_error's result where the caller has it already. Scales in groups need none, and set the
    accumulation themselves. s8 has a bound with them too.
    """
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return _group_tolerance(a, b, a_scales, b_scales, groups, out_dtype, bias)
    if sum_error is None:
        sum_error = accumulation_error(a, b, accumulation)
    return scaled_error(a.to(torch.float64) @ b.to(torch.float64), sum_error, a_scales, b_scales, out_dtype, bias)


def _group_tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    groups: ScaleGroups,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    exact = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    error, magnitude, additions = exact.clone(), exact.clone(), 1
    core = TENSOR_CORES.get(a.dtype)
    for a_group, b_group, scale in each_group(a, b, a_scales, b_scales, groups):
        lost = torch.zeros_like(error) if core is None else lost_in_sum(a_group, b_group, core)
        acc, scale_size = a_group @ b_group, scale.abs()
        term = scale_size * (acc.abs() + lost)
        error += scale_size * lost + GROUP_ROUNDINGS * FLOAT32_UNIT * term
        magnitude += term
        exact += scale * acc
        additions += 2  # to the register, and as one of at most as many slices of K
    if bias is not None:
        exact += bias.reshape(1, -1).to(torch.float64)
        magnitude += bias.reshape(1, -1).to(torch.float64).abs()
    error += additions * FLOAT32_UNIT * magnitude
    return error + half_unit_in_last_place(exact.abs() + error, out_dtype)


# Users' epilogues ----------------------------------------------------------------------------------------------------

LIBRARY_UNITS = 4
"""The most units in the last place that CUDA's functions are off: 2 of exp2, erf, tanh and rsqrt, 1 of exp and log."""
_ROUNDED = ("add", "sub", "mul", "fma", "float")
_LIBRARY = ("div", "exp", "exp2", "log", "tanh", "erf", "sqrt", "rsqrt")
_SMALLEST = 2.0**-126

Ends = tuple[Tensor, Tensor]
"""The lowest and the highest value. For a comparison, whether it holds surely, and whether it holds possibly."""


def own_interval(traced: Traced, given: Mapping[str, Any], accumulation: Accumulation) -> Ends:
    """The ends between which a right kernel's results lie, float64 [M, N], NaN where nothing is known; `given` is by
    role.

    The sum has the error of the tensor core. Each step widens the interval of its inputs by its own error, with
    products and sums fused or not: half a unit of a rounded value, nothing of an exact one, and LIBRARY_UNITS of the
    library's functions, quotients and roots.
    """
    total = given["a"].to(torch.float64) @ given["b"].to(torch.float64)
    lost = accumulation_error(given["a"], given["b"], accumulation)
    values: list[Ends] = [(total, total)]
    if traced.accumulator is Kind.F32:
        values = [_rounded((total - lost, total + lost))]
    values += [(value.double(), value.double()) for value in inputs_of(traced, given)]
    for step in traced.steps:
        if step.word in ("number", "whole"):
            number = torch.tensor(step.number, dtype=torch.float64, device=total.device).float().double()
            values.append((number, number))
            continue
        of = [values[at] for at in step.of]
        ends = _ENDS_OF[step.word](*of) if step.word in _ENDS_OF else _by_corners(step.word, *of)
        if traced.kinds[len(values)] is Kind.S32:
            ends = _wrapped_end(ends[0]), _wrapped_end(ends[1])
        elif step.word in _ROUNDED:
            ends = _rounded(ends)
        elif step.word in _LIBRARY:
            ends = _widened(ends, 2 * LIBRARY_UNITS * FLOAT32_UNIT)
        values.append(_overflown(ends) if traced.kinds[len(values)] is Kind.F32 else ends)
    low, high = values[traced.result]
    return low.expand(total.shape), high.expand(total.shape)


def _rounded(ends: Ends) -> Ends:
    """The ends after a rounding to float32. Equal ends stay where float32 holds them."""
    exact = (ends[0] == ends[1]) & (ends[0].float().double() == ends[0])
    low, high = _widened(ends, FLOAT32_UNIT)
    return torch.where(exact, ends[0], low), torch.where(exact, ends[1], high)


def _widened(ends: Ends, unit: float) -> Ends:
    low, high = ends
    return low - unit * (low.abs() + _SMALLEST), high + unit * (high.abs() + _SMALLEST)


def _overflown(ends: Ends) -> Ends:
    """The ends where float32 may overflow: a value beyond its last number may be that number or infinity."""
    last = torch.finfo(torch.float32).max
    low, high = ends
    low = torch.where(low < -last, -torch.inf, torch.where(low > last, last, low))
    return low, torch.where(high > last, torch.inf, torch.where(high < -last, -last, high))


def _wrapped_end(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 2.0**53, torch.nan, (x + 2.0**31) % 2.0**32 - 2.0**31)


def _by_corners(word: str, *of: Ends) -> Ends:
    """The ends of a function that is monotone in each operand: an extreme lies at one of the corners."""
    corners = [_MONOTONE[word](*corner) for corner in product(*of)]
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = torch.minimum(low, corner), torch.maximum(high, corner)
    return low, high


_MONOTONE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "fma": lambda x, y, z: x * y + z,
    "neg": torch.neg,
    "min": torch.fmin,
    "max": torch.fmax,
    "float": lambda x: x,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
}


def _quotient(x: Ends, y: Ends) -> Ends:
    through_zero = (y[0] <= 0) & (y[1] >= 0)
    divisor = tuple(torch.where(through_zero, torch.nan, end) for end in y)
    corners = [numerator / end for numerator in x for end in divisor]
    return torch.stack(torch.broadcast_tensors(*corners)).amin(0), torch.stack(torch.broadcast_tensors(*corners)).amax(
        0
    )


def _magnitude(x: Ends) -> Ends:
    ends = x[0].abs(), x[1].abs()
    inside = (x[0] <= 0) & (x[1] >= 0)
    return torch.where(inside, 0.0, torch.minimum(*ends)), torch.maximum(*ends)


def _roots(x: Ends) -> Ends:
    return torch.where(x[1] >= 0, x[0].clamp(min=0), x[0]).sqrt(), x[1].sqrt()


def _chosen(test: Ends, x: Ends, y: Ends) -> Ends:
    surely, possibly = test
    low = torch.where(surely, x[0], torch.where(possibly, torch.minimum(x[0], y[0]), y[0]))
    return low, torch.where(surely, x[1], torch.where(possibly, torch.maximum(x[1], y[1]), y[1]))


def _equal(x: Ends, y: Ends) -> Ends:
    return (x[0] == y[1]) & (x[1] == y[0]), (x[0] <= y[1]) & (x[1] >= y[0])


_ENDS_OF: dict[str, Callable[..., Ends]] = {
    "div": _quotient,
    "abs": _magnitude,
    "sqrt": _roots,
    "rsqrt": lambda x: _quotient((torch.ones_like(x[0]), torch.ones_like(x[0])), _roots(x)),
    "where": _chosen,
    "lt": lambda x, y: (x[1] < y[0], x[0] < y[1]),
    "le": lambda x, y: (x[1] <= y[0], x[0] <= y[1]),
    "gt": lambda x, y: (x[0] > y[1], x[1] > y[0]),
    "ge": lambda x, y: (x[0] >= y[1], x[1] >= y[0]),
    "eq": _equal,
    "ne": lambda x, y: (~_equal(x, y)[1], ~_equal(x, y)[0]),
}


def outside_of_own(found: Tensor, ends: Ends) -> Tensor:
    """Which results of a user's epilogue are wrong: those that store no value between the ends."""
    low, high = (stored_as(end.float(), found.dtype).float() for end in ends)
    known = low.isfinite() & high.isfinite()
    return known & ~((found.float() >= low) & (found.float() <= high))
