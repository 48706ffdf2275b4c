"""The result of its op."""

import torch
from torch import Tensor


def pack(pages: Tensor, low: int) -> tuple[Tensor, Tensor]:
    """Codes u8 [length, page / 2] and peaks f32 [length] of pages f32 [length, page].

    A number's code is the nearest of `low` to 15, ties to even, NaN is `low`; the first of two lies in the low half of a byte.
    A page's peak is its largest number, 0 if it has none above.
    """
    codes = torch.nan_to_num(pages, nan=0.0).round().clamp(low, 15).to(torch.uint8)
    peaks = torch.nan_to_num(pages, nan=0.0).clamp_min(0.0)
    highest = peaks.amax(dim=1) if peaks.shape[1] else peaks.new_zeros(peaks.shape[0])
    return codes[:, 0::2] | codes[:, 1::2] << 4, highest
