"""The grouped GEMMs in plain torch, from the quantised operands, on any device.

Sums are made in float64: exactly of 8-bit operands (`gemmill.families.moe.bounds` says why). What follows is done as kernels do
it: scales of columns, then of rows, in float32, rounded once to the result's type. Scales in groups are applied in float64.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmill.formats.folded_blocks import FoldedBlocks
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.segments import Segment as Segment
from gemmill.formats.segments import gathered as gathered
from gemmill.formats.segments import segments as segments
from gemmill.vocab import Format


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


def exact_mm(a: Tensor, b: Tensor, a_scales: Tensor | None = None, b_scales: Tensor | None = None) -> Tensor:
    """a_scales b_scales (a b^T), float64 [M, N], of rows of one expert; a [M, K], b [N, K].

    a_scales has one value or one for each row, b_scales one or one for each column. Or a_scales are [M, K/128] and b_scales
    [N/128, K/128], sizes rounded up. Without them a and b are what they are.
    """
    if a_scales is None or b_scales is None:
        return a.double() @ b.double().t()
    if b_scales.dim() != 2:
        scaled = a.double() @ b.double().t() * b_scales.reshape(1, -1).double()
        return a_scales.reshape(-1, 1).double() * scaled
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device)
    for part, scale in each_group(a, b, a_scales, b_scales):
        total += scale * part
    return total


def each_group(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each 128 along K: the sum of its products, and the float32 product of its scales, as float64 [M, N]."""
    columns = torch.arange(b.shape[0], device=b.device) // 128
    for g, start in enumerate(range(0, a.shape[1], 128)):
        end = start + 128
        part = a[:, start:end].double() @ b[:, start:end].double().t()
        yield part, (a_scales[:, g, None] * b_scales[columns, g]).double()


def segment_mm(
    a: Tensor, b: Tensor, a_scales: Tensor | None, b_scales: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """The result of one expert's rows, rounded as kernels round it. Arguments as in exact_mm."""
    if a_scales is None or b_scales is None:
        return exact_mm(a, b).float().to(out_dtype)
    if b_scales.dim() == 2:
        return exact_mm(a, b, a_scales, b_scales).to(out_dtype)
    total = (a.double() @ b.double().t()).float() * b_scales.reshape(1, -1)
    return (a_scales.reshape(-1, 1) * total).to(out_dtype)
