"""The grouped GEMMs in plain torch, from the quantised operands, on any device.

Sums are in float64, exact for 8-bit operands (`gemmill.families.grouped_mm.bounds` says why). The rest follows the kernels:
scales of columns, then of rows, in float32, rounded once to the result's type. Scales in groups apply in float64. An
alpha multiplies scales of columns, or else the sum. The last product and the sum with a bias are one fused operation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmill.arithmetic import fused_multiply_add, scaled_sums
from gemmill.families.grouped_mm.config import SCALE_GROUPS
from gemmill.formats.folded_blocks import FoldedBlocks
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.segments import Segment as Segment
from gemmill.formats.segments import gathered as gathered
from gemmill.formats.segments import segments as segments
from gemmill.vocab import Format, ScaleGranularity, ScaleGroups


def unpacked(blocks: Tensor, base: Tensor, format: Format, k: int, *, folded: bool) -> Tensor:
    """Packed weights of an expert as float64 [N, K]: blocks of a kernel's order, of e4m3 if `folded`, on bases [N]."""
    if folded:
        return FoldedBlocks(format=format, n=len(base), k=k, blocks=blocks, base=base).values()
    packed = Fp4Blocks(format=format, n=len(base), k=k, blocks=blocks, base=base)
    values: Tensor = packed.weights()[0].values()
    return values * base.double()[:, None]


def packed_exact_mm(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """a b^T + bias, float64 [M, N], of one expert's rows a [M, K] and its weights b [N, K].

    Both are float64, and have their scales in them.
    """
    total = a @ b.t()
    return total if bias is None else total + bias.double()


def scale_groups_of(b_scales: Tensor, n: int, k: int) -> ScaleGroups:
    """The kind of an expert's scales in groups, by their shape; where shapes fit several, all of them mean the same."""
    return next(groups for groups in SCALE_GROUPS if b_scales.shape == groups.b_shape(n, k)[::-1])


def exact_mm(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """alpha a_scales b_scales (a b^T) + bias, float64 [M, N], of rows of one expert; a [M, K], b [N, K].

    a_scales has one value or one for each row, b_scales one or one for each column. Or they are in groups of g:
    a_scales are [M, K/g] and b_scales [N/g, K/g], or [N, K/g], sizes rounded up (SCALE_GROUPS). Without them a and b
    are plain values. alpha has one value, bias [N]; the product of alpha and scales of columns rounds to float32, as in
    kernels.
    """
    if a_scales is None or b_scales is None:
        total = a.double() @ b.double().t()
    elif b_scales.dim() != 2:
        total = a.double() @ b.double().t() * with_alpha(b_scales, alpha).reshape(1, -1).double()
        total, alpha = a_scales.reshape(-1, 1).double() * total, None
    else:
        total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device)
        for part, scale in each_group(a, b, a_scales, b_scales):
            total += scale * part
    return _ended(total, alpha, bias)


def with_alpha(b_scales: Tensor, alpha: Tensor | None) -> Tensor:
    """Scales of columns times alpha, float32."""
    return b_scales if alpha is None else b_scales * alpha.reshape(())


def _ended(total: Tensor, alpha: Tensor | None, bias: Tensor | None) -> Tensor:
    """alpha total + bias, in float64."""
    total = total if alpha is None else total.double() * alpha.reshape(()).double()
    return total if bias is None else total.double() + bias.double()


def each_group(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each group along K: the sum of its products, and the float32 product of its scales, as float64 [M, N]."""
    groups = scale_groups_of(b_scales, *b.shape)
    columns = torch.arange(b.shape[0], device=b.device, dtype=torch.int64)
    if groups.b_scale is ScaleGranularity.BLOCK:
        columns = columns // groups.size
    for g, start in enumerate(range(0, a.shape[1], groups.size)):
        end = start + groups.size
        part = a[:, start:end].double() @ b[:, start:end].double().t()
        yield part, (a_scales[:, g, None] * b_scales[columns, g]).double()


def segment_mm(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor | None,
    b_scales: Tensor | None,
    out_dtype: torch.dtype,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The result of one expert's rows, rounded as kernels round it. Arguments as in exact_mm."""
    if a_scales is None or b_scales is None:
        total = exact_mm(a, b).float()
        if alpha is None and bias is None:
            return total.to(out_dtype)
        factor = total.new_ones(1) if alpha is None else alpha.reshape(1)
        added = total.new_zeros(1) if bias is None else bias.float()
        return fused_multiply_add(factor, total, added).to(out_dtype)
    if b_scales.dim() == 2:
        return exact_mm(a, b, a_scales, b_scales, alpha, bias).to(out_dtype)
    return scaled_sums(a.double() @ b.double().t(), a_scales, with_alpha(b_scales, alpha), out_dtype, bias)
