"""Codes in streams of bits and scalars in bytes."""

import torch
from torch import Tensor

from gemmill.arithmetic import regrouped
from gemmill.families.kv_cache.formats import packed_size


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes, whole numbers [..., n] below 2^bits, as u8 [..., ceil(n bits / 8)].

    They are a stream, least significant bit first, padded by 0. Raises ValueError for codes that `bits` cannot hold.
    """
    codes = codes.to(torch.int64)
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 1 << bits:
        raise ValueError(
            f"Codes from {int(codes.min())} to {int(codes.max())} were to be packed in {bits} bits; they hold 0 to "
            f"{(1 << bits) - 1}: clamp them or take more bits."
        )
    whole = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 8))  # eight codes are whole bytes
    return regrouped(whole, bits, 8)[..., : packed_size(codes.shape[-1], bits)]


def unpack_codes(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of u8 [..., bytes], s64 [..., count]: the inverse of pack_codes. It does not read
    padding.
    """
    if packed.dtype is not torch.uint8 or packed.shape[-1] != packed_size(count, bits):
        raise ValueError(
            f"{count} codes of {bits} bits were to be read from {packed.dtype} of {packed.shape[-1]} bytes; they are "
            f"torch.uint8 of {packed_size(count, bits)}: pass the field that pack_codes wrote."
        )
    whole = torch.nn.functional.pad(packed, (0, -packed.shape[-1] % bits))  # and so many bytes whole codes
    return regrouped(whole, 8, bits)[..., :count].long()


def pack_float16(scalars: Tensor) -> Tensor:
    """Scalars [...] rounded to float16, as u8 [..., 2]. Scalars beyond float16 become infinite, and stay visible."""
    return scalars.to(torch.float16)[..., None].contiguous().view(torch.uint8)


def unpack_float16(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The float16 scalars u8 [..., 2] as `dtype` [...]."""
    dense = packed.clone(memory_format=torch.contiguous_format)  # of nothing too, which any strides are contiguous for
    return dense.view(torch.float16)[..., 0].to(dtype)
