"""scaled_mm_act_quant in plain torch, from the quantised operands, on any device.

It is the ops that it stands for, one after the other. Sums of s8 are integers, converted to float32. The product with
its scales rounds to bf16. Gate and up are in float32, each operation rounded on its own. Scales of operands in groups
apply in float64. The stored results:

    bf16           the value, rounded once
    e4m3, static   the code of value * (1 / scale)
    e4m3, groups   scale = max(amax / 448, 1 / (448 * 512)) of each 128 of a row, and the code of value / scale

A code is that of the nearest e4m3 number, ties to even, saturated at 448. NaN is 0x7f, and does not count for amax.
Codes are those of silu_and_mul_quant and silu_and_mul_per_block_quant.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import GROUP
from gemmill.formats.gate_up import packed_blocks, packed_rows
from gemmill.formats.gating import activated, encode
from gemmill.vocab.activation import Activation


def exact_mm(a: Tensor, b: Tensor) -> Tensor:
    """a b without scales, float64 [M, N]: e4m3 and s8 products sum without loss up to 2^17 of them."""
    return a.double() @ b.double()


def in_groups(b: Tensor, b_scales: Tensor) -> bool:
    """Whether scales are in groups: b_scales [K / GROUP, 2 hidden / GROUP], rounded up."""
    k, n = b.shape
    return b_scales.shape == (-(-k // GROUP), 2 * -(-n // (2 * GROUP)))


def each_group(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each GROUP along K: its columns of a, its rows of b, and the scales of its sums, [M, N].

    A scale is the float32 product of a's and b's. All three are float64.
    """
    block = packed_blocks(b.shape[1], b.device)
    for g, start in enumerate(range(0, a.shape[1], GROUP)):
        scale = a_scales[:, g, None] * b_scales[g][block]
        yield a[:, start : start + GROUP].double(), b[start : start + GROUP].double(), scale.double()


def exact_group_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """a_scales b_scales (a b) of scales in groups, before any rounding but float64's, [M, N]."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for of_a, of_b, scale in each_group(a, b, a_scales, b_scales):
        total += scale * (of_a @ of_b)
    return total


def rounded_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """The product a_scales b_scales (a b) in bf16 [M, N], as a kernel of its own would have stored it: b's scale
    first."""
    if in_groups(b, b_scales):
        return exact_group_mm(a, b, a_scales, b_scales).bfloat16()
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
    """The results before they become codes: float32 [M, N / 2]. b is packed (gemmill.formats.gate_up)."""
    product = rounded_mm(a, b, a_scales, b_scales).float()
    gate, up = packed_rows(b.shape[1] // 2, b.device)
    return activated(product[:, gate], product[:, up], activation, alpha, limit, beta)


def static_codes(x: Tensor, scale: Tensor) -> Tensor:
    """e4m3 codes of float32 values by a given float32 scale of one element: those of value * (1 / scale)."""
    return encode(x * torch.reciprocal(scale.reshape(())))
