"""cutlass_scaled_mm and cutlass_scaled_mm_azp in plain torch, from the quantised operands, on any device.

Sums are exact. A product of two e4m3 numbers is a multiple of 2^-18 below 2^18. So float64 holds a sum of 2^17 of them
to the last bit. A product of two s8 numbers is at most 2^14. Products of bf16 and of f16 numbers are exact in float64.
Their sum loses 2^-53 of its addends, which is nothing next to float32's loss. After the sum it follows the kernels'
epilogues: in float32, b's scale first, then a's scale and the bias in one fused multiply-add, rounded once to the
output's type. So s8 results are the same to the last bit; the others differ by the tensor core's loss in the sum, which
`bounds.py` bounds.

Scales in groups along K: D = sum over g of a_scales[m, g] b_scales[g, n] acc_g[m, n] + bias. The product of the scales
is taken in float32, as in the kernels, which decides where it overflows. Its application and the bias are in float64,
and the result rounds once. Kernels do all in float32: `bounds.py` bounds that too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gemmill.arithmetic import INT32_SPAN, fused_multiply_add, scaled_sums
from gemmill.families.scaled_mm.own import roles_of
from gemmill.gemm.traced import Along, Kind, Step, Stored, Traced
from gemmill.vocab import ScaleGranularity, ScaleGroups, scale_groups_of


def scaled_mm(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp: Tensor | None = None,
) -> Tensor:
    """D[M, N] = a_scales b_scales (a b - zero point) + bias, of `out_dtype`.

    a is [M, K] and b [K, N], with any strides. Both are float8_e4m3fn, int8, bfloat16 or float16. a_scales are float32
    of 1 or M values, b_scales of 1 or N. Or both are in groups along K with g = 128, 64 or 32. Then a_scales are [M,
    K/g], and b_scales [K/g, N/g] or [K/g, N]. bias is [N] of any float type. azp_adj is int32 [N]. azp is int32 of M
    values, which multiply azp_adj.

    Raises ValueError where a scale has another number of values.
    """
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return exact_group_scaled_mm(a, b, a_scales, b_scales, groups, bias).to(out_dtype)
    check_scales(a, b, a_scales, b_scales)
    return scaled_sums(accumulate(a, b), a_scales, b_scales, out_dtype, bias, azp_adj, azp)


def check_scales(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> None:
    """Raises ValueError unless a_scales has 1 or M values and b_scales 1 or N. It is for scales that fit no groups."""
    for name, scales, along, count in (
        ("a_scales", a_scales, "M", a.shape[0]),
        ("b_scales", b_scales, "N", b.shape[1]),
    ):
        if scales.numel() not in (1, count):
            raise ValueError(f"{name} has {scales.numel()} values: the reference takes 1 or {along} = {count}")


def accumulate(a: Tensor, b: Tensor) -> Tensor:
    """a b without scales, exact, as float64 [M, N]."""
    return a.to(torch.float64) @ b.to(torch.float64)


def groups_of(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> ScaleGroups | None:
    """The kind of groups that the scales come in; None where each has one value or one for each row (column)."""
    (m, k), n = a.shape, b.shape[1]
    if a_scales.numel() in (1, m) and b_scales.numel() in (1, n):
        return None
    return scale_groups_of(a_scales.shape, b_scales.shape, m, n, k)


def exact_group_scaled_mm(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, groups: ScaleGroups, bias: Tensor | None = None
) -> Tensor:
    """The result before any rounding but float64's, [M, N].

    a is [M, K], b [K, N]. a_scales are [M, K/g], b_scales [K/g, N/g] or [K/g, N]. Sizes round up, and strides are free.
    """
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for a_group, b_group, scale in each_group(a, b, a_scales, b_scales, groups):
        total += scale * (a_group @ b_group)
    return total if bias is None else total + bias.reshape(1, -1).to(torch.float64)


def each_group(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, groups: ScaleGroups
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each group along K its columns of a, its rows of b, and the float32 product of scales for each element.

    All are float64.
    """
    n, size = b.shape[1], groups.size
    for g, start in enumerate(range(0, a.shape[1], size)):
        of_b = b_scales[g]
        if groups.b_scale is ScaleGranularity.BLOCK:
            of_b = of_b.repeat_interleave(size)[:n]
        scale = (a_scales[:, g, None] * of_b).to(torch.float64)
        yield a[:, start : start + size].to(torch.float64), b[start : start + size].to(torch.float64), scale


def _wrapped(x: Tensor) -> Tensor:
    """int64 values as int32 wraps them around, in int64."""
    return (x + INT32_SPAN // 2) % INT32_SPAN - INT32_SPAN // 2


_STEPS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "min": torch.fmin,
    "max": torch.fmax,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "fma": fused_multiply_add,
    "where": torch.where,
    "float": lambda x: x.to(torch.float32),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
}
"""The function of each step on float32 tensors, every operation rounded on its own, and on integers in int64."""


def computed(step: Step, values: list[Tensor]) -> Tensor:
    """A step's value; integers are of 32 bits, which wrap around."""
    if step.word in ("number", "whole"):
        return torch.tensor(
            step.number, dtype=torch.float32 if step.word == "number" else torch.int64, device="cpu"
        ).to(values[0].device)
    result = _STEPS[step.word](*(values[at] for at in step.of))
    return _wrapped(result) if result.dtype is torch.int64 else result


def inputs_of(traced: Traced, given: Mapping[str, Any]) -> Iterator[Tensor]:
    """The inputs as tensors that broadcast over [M, N], from a call's arguments by role: float32, or int64."""
    roles, like = roles_of(traced), given["a"]
    for told in traced.inputs:
        value = given.get(roles[told.name])
        if told.along is Along.SCALAR:
            value = torch.tensor(value, dtype=torch.float32, device=like.device)
        elif value is None:
            assert told.absent is not None  # the contract has refused a call without the others
            kind = given["out"].dtype if told.stored is Stored.OUT else torch.float64
            value = torch.full((1, 1), told.absent, dtype=kind, device=like.device)
        else:
            value = value.reshape((-1, 1) if told.along is Along.ROW else (1, -1))
        yield value.to(torch.int64 if told.stored.kind is Kind.S32 else torch.float32)


_LARGEST_CODE = torch.finfo(torch.float8_e4m3fn).max


def stored_as(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 values as a kernel stores them: codes of e4m3 saturate, and NaN stays."""
    if dtype is torch.float8_e4m3fn:
        values = values.clamp(-_LARGEST_CODE, _LARGEST_CODE)
    return values.to(dtype)


def own_mm(traced: Traced, given: Mapping[str, Any]) -> Tensor:
    """The result of a user's epilogue on a b, [M, N] of out's dtype; arguments by role
    (gemmill.families.scaled_mm.own).
    """
    total = accumulate(given["a"], given["b"])
    values = [total.to(torch.int64) if traced.accumulator is Kind.S32 else total.to(torch.float32)]
    values.extend(inputs_of(traced, given))
    for step in traced.steps:
        values.append(computed(step, values))
    return stored_as(values[traced.result].expand(total.shape), given["out"].dtype)
