"""cutlass_scaled_mm with scales in groups along K: D = sum over g of a_scales[m, g] b_scales[g, n] acc_g[m, n] + bias.

`acc_g`, the sum of one group's products, is exact in float64 (see gemmill.reference.scaled_mm). The product of the
scales is taken in float32, as in the kernels, which decides where it overflows; it is applied and the bias added in
float64, and the result is rounded once. Kernels do all in float32: `gemmill.reference.tolerance` bounds the difference.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmill.vocab import ScaleGranularity, ScaleGroups, scale_groups_of


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

    a [M, K], b [K, N]; a_scales [M, K/g]; b_scales [K/g, N/g] or [K/g, N]; sizes rounded up; any strides.
    """
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for a_group, b_group, scale in each_group(a, b, a_scales, b_scales, groups):
        total += scale * (a_group @ b_group)
    return total if bias is None else total + bias.reshape(1, -1).to(torch.float64)


def each_group(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, groups: ScaleGroups
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each group along K: its columns of a, its rows of b, and the float32 product of scales for each element of the
    result, all as float64."""
    n, size = b.shape[1], groups.size
    for g, start in enumerate(range(0, a.shape[1], size)):
        of_b = b_scales[g]
        if groups.b_scale is ScaleGranularity.BLOCK:
            of_b = of_b.repeat_interleave(size)[:n]
        scale = (a_scales[:, g, None] * of_b).to(torch.float64)
        yield a[:, start : start + size].to(torch.float64), b[start : start + size].to(torch.float64), scale
