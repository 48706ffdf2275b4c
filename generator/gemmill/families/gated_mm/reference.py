"""scaled_mm_act_quant in plain torch, from the quantised operands, on any device.

It is the ops that it stands for, one after the other. Sums of s8 are integers, converted to float32. The product with
its scales rounds to bf16. Gate and up are in float32, each operation rounded on its own. Scales of operands in groups
apply in float64. The stored results:

    bf16           the value, rounded once
    e4m3, static   the code of value * (1 / scale)
    e4m3, groups   scale = max(amax / 448, 1 / (448 * 512)) of each 128 or 32 of a row, and the code of value / scale

A code is that of the nearest e4m3 number, ties to even, saturated at 448. NaN is 0x7f, and does not count for amax.
Codes are those of silu_and_mul_quant and silu_and_mul_per_block_quant.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP
from gemmill.formats.gate_up import packed_rows
from gemmill.formats.gating import activated, encode
from gemmill.vocab.activation import Activation


def exact_mm(a: Tensor, b: Tensor) -> Tensor:
    """a b without scales, float64 [M, N]: e4m3 and s8 products sum without loss up to 2^17 of them."""
    return a.double() @ b.double()


@dataclass(frozen=True)
class Groups:
    """Groups of operands' scales."""

    size: int
    """Elements along K."""
    rows_scaled: bool = False
    """Whether each gate and up has scales of its own, in place of one for a block of `size`."""

    def b_shape(self, n: int, k: int) -> tuple[int, int]:
        """Shape of the scales of packed weights [N, K]: [K / size, 2 hidden / size], or [K / size, 2 hidden], rounded up."""
        return -(-k // self.size), n if self.rows_scaled else 2 * -(-n // (2 * self.size))

    @property
    def block(self) -> int:
        """Gates, or ups, that share a scale, by which packed weights have their order; 0 where each has its own."""
        return 0 if self.rows_scaled else self.size


KINDS = (Groups(GROUP), Groups(FINE_GROUP), Groups(FINE_GROUP, rows_scaled=True))


def groups_of(b: Tensor, b_scales: Tensor) -> Groups | None:
    """The groups of the operands' scales; None where they are of rows and columns."""
    k, n = b.shape
    found = next((kind for kind in KINDS if b_scales.shape == kind.b_shape(n, k)), None)
    return None if found is not None and found.rows_scaled and k <= found.size else found


def rows_of(b: Tensor, b_scales: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of b that are the gates of its results, and those that are their ups, by number."""
    groups = groups_of(b, b_scales)
    return packed_rows(b.shape[1] // 2, b.device, groups.block if groups else 0)


def each_group(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each group along K: its columns of a, its rows of b, and the scales of its sums, [M, N].

    A scale is the float32 product of a's and b's. All three are float64.
    """
    kind = groups_of(b, b_scales)
    assert kind is not None  # callers pass scales in groups alone
    size = kind.size
    for g, start in enumerate(range(0, a.shape[1], size)):
        of_b = b_scales[g] if kind.rows_scaled else b_scales[g].repeat_interleave(size)
        scale = a_scales[:, g, None] * of_b
        yield a[:, start : start + size].double(), b[start : start + size].double(), scale.double()


def exact_group_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """a_scales b_scales (a b) of scales in groups, before any rounding but float64's, [M, N]."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for of_a, of_b, scale in each_group(a, b, a_scales, b_scales):
        total += scale * (of_a @ of_b)
    return total


def rounded_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """The product a_scales b_scales (a b) in bf16 [M, N], as a kernel of its own would have stored it: b's scale
    first."""
    if groups_of(b, b_scales) is not None:
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
    gate, up = rows_of(b, b_scales)
    return activated(product[:, gate], product[:, up], activation, alpha, limit, beta)


def static_codes(x: Tensor, scale: Tensor) -> Tensor:
    """e4m3 codes of float32 values by a given float32 scale of one element: those of value * (1 / scale)."""
    return encode(x * torch.reciprocal(scale.reshape(())))
