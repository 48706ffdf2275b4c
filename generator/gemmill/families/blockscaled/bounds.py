"""How far a right kernel may be from the references, where it need not equal them to the bit.

A GEMM on Hopper upcasts codes times scales to bf16 or f16, where they are exact (docs/formats.md), and multiplies them
there. `gemmill.arithmetic` has the loss of sums. Sixteen f32 multiply-adds in a row lose no more: 16 x 2^-24 of at most
twice the largest. Slices of K have sums of their own, which add up in f32. The bound claims nothing for block-scaled
tensor cores of Blackwell, whose sums are not published.

Weights folded into e4m3 make an ordinary scaled GEMM of it, with the base as scale: sums on the FP8 tensor core lose as there.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT, OF_16_BITS, TensorCore, half_unit_in_last_place, lost_in_sum
from gemmill.vocab.float_type import E4M3

EPILOGUE_ROUNDINGS = 3
"""Roundings in the epilogue: of a row's base, of alpha or a token's scale, and of the bias."""


def widened_tolerance(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    slice_k: int | None = None,
) -> Tensor:
    """Largest |kernel - exact_mm| of a right upcasting kernel, float64 [M, N]; arguments as in exact_mm.

    `slice_k`: columns with a sum of their own before the final addition; all by default. The sums along K are the true
    ones, in ascending order.
    """
    exact, error, magnitude = (
        torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device) for _ in range(3)
    )
    size = slice_k or max(a.shape[1], 1)
    for start in range(0, a.shape[1], size):
        a_slice, b_slice = a[:, start : start + size], b[:, start : start + size].t()
        part, lost = a_slice @ b_slice, lost_in_sum(a_slice, b_slice, OF_16_BITS)
        exact += part
        magnitude += part.abs() + lost
        error += lost + (0.0 if slice_k is None else FLOAT32_UNIT * magnitude)
    factor = torch.ones((), dtype=torch.float64, device="cpu") if alpha is None else alpha.double()
    largest, error, result = factor.abs() * magnitude, factor.abs() * error, factor * exact
    if bias is not None:
        largest, result = largest + bias.double().abs(), result + bias.double()
    error = error + EPILOGUE_ROUNDINGS * FLOAT32_UNIT * largest
    return error + half_unit_in_last_place(result.abs() + error, out_dtype)


MOST_SLICES = 64
"""Slices of K that a kernel adds up in f32."""


def any_order_tolerance(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
    core: TensorCore = OF_16_BITS,
    promoted_k: int | None = None,
) -> Tensor:
    """The tolerance of `widened_tolerance`, whatever the order in which instructions take the columns.

    No sum is larger than that of all magnitudes. `core` is the tensor core that sums. After every `promoted_k` columns
    its sums join an f32 register. The values of a and b have their scales in them.
    """
    magnitude = a.abs() @ b.abs().t()
    summed = min(a.shape[1], promoted_k or a.shape[1])
    losses = -(-summed // core.instruction_k) * core.losses * core.unit
    if promoted_k is not None:  # a product with two factors, and an addition for each part
        losses += (3 - (-a.shape[1] // promoted_k)) * FLOAT32_UNIT
    error = (losses + MOST_SLICES * FLOAT32_UNIT) * magnitude
    one, zero = (torch.full((), value, dtype=torch.float64, device=a.device) for value in (1.0, 0.0))
    factor, shift = (one if alpha is None else alpha.double()), (zero if bias is None else bias.double())
    largest = factor.abs() * (magnitude + error) + shift.abs()
    error = factor.abs() * error + EPILOGUE_ROUNDINGS * FLOAT32_UNIT * largest
    result = factor * (a @ b.t()) + shift
    return error + half_unit_in_last_place(result.abs() + error, out_dtype)


def rounded_fold_error(values: Tensor, base: Tensor) -> Tensor:
    """Largest change of weights [N, K] from rounding them to e4m3 on a base [N, 1], float64.

    It is half a step, of the subnormals below 2^-6 of the base. No weight may be above 448 of its base.
    """
    step = torch.maximum(values.abs() * 2.0**-E4M3.mantissa_bits, base * E4M3.smallest)
    return step / 2
