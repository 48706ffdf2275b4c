"""The GEMMs of 2:4 sparse weights in plain torch, from the compressed operands, on any device.

It decompresses the weights. Sums are exact as those of the scaled GEMMs' reference: in float64, then the epilogue's
roundings. So results of s8 are the same to the last bit. The others differ by the tensor core's loss, which `bounds.py`
bounds.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import scaled_sums
from gemmill.formats.two_to_four import decompress


def sparse_mm(
    a: Tensor,
    bt_nzs: Tensor,
    bt_meta: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp: Tensor | None = None,
) -> Tensor:
    """D[M, N] = a_scales b_scales (a b - zero point) + bias, of `out_dtype`.

    a is [M, K] of float8_e4m3fn, int8, bfloat16 or float16. b^T is [N, K], as kept values and metadata of
    `formats.two_to_four`. a_scales are float32 of 1 or M values, b_scales of 1 or N. bias is [N]. azp_adj is int32 [N],
    azp int32 of M values.

    Raises ValueError where the metadata has a pattern that there cannot be.
    """
    b = decompress(bt_nzs, bt_meta, a.shape[1]).t()
    return scaled_sums(sums(a, b), a_scales, b_scales, out_dtype, bias, azp_adj, azp)


def sums(a: Tensor, b: Tensor) -> Tensor:
    """The product of a [M, K] and b [K, N], exact, as float64."""
    return a.to(torch.float64) @ b.to(torch.float64)
