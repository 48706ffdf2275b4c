"""scaled_mm_act_quant in plain torch, from the quantised operands, on any device.

It is the ops that it stands for, one after the other: the product with its scales, rounded to bf16; gate and up in float32, each
operation rounded on its own; then what is stored:

    bf16           the value, rounded once
    e4m3, static   the code of value * (1 / scale)
    e4m3, groups   scale = max(amax / 448, 1 / (448 * 512)) of each 128 of a row, and the code of value / scale

Codes are the nearest e4m3 number, ties to even, saturated at 448; NaN is 0x7f, and does not count for amax. They are those of
silu_and_mul_quant and silu_and_mul_per_block_quant.
"""

import torch
from torch import Tensor

from gemmill.formats.gate_up import packed_rows
from gemmill.formats.gating import activated, encode
from gemmill.vocab.activation import Activation


def exact_mm(a: Tensor, b: Tensor) -> Tensor:
    """a b without scales, float64 [M, N]: e4m3 products sum without loss up to 2^17 of them."""
    return a.double() @ b.double()


def rounded_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """a_scales b_scales (a b) in bf16 [M, N], as a kernel of its own would have stored it: b's scale first."""
    scaled = exact_mm(a, b).float() * b_scales.reshape(1, -1)
    return (a_scales.reshape(-1, 1) * scaled).bfloat16()


def values(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    activation: Activation,
    alpha: float,
    limit: float,
    beta: float,
) -> Tensor:
    """What is stored, before it is coded: float32 [M, N / 2]. b is packed (gemmill.formats.gate_up)."""
    product = rounded_mm(a, b, a_scales, b_scales).float()
    gate, up = packed_rows(b.shape[1] // 2, b.device)
    return activated(product[:, gate], product[:, up], activation, alpha, limit, beta)


def static_codes(x: Tensor, scale: Tensor) -> Tensor:
    """Codes of values by a scale that is given."""
    return encode(x * torch.reciprocal(scale.reshape(())))
