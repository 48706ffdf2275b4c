"""Codes of a few bits: values to codes and back, and codes to packed bytes and back.

code(x)    nearest value of the type, ties to even, saturated; NaN is the type's NaN, else its largest value (as PTX's
           cvt.satfinite)
"""

import torch
from torch import Tensor

from gemmill.arithmetic import regrouped
from gemmill.vocab.float_type import FloatType


def two_to(exponent: Tensor) -> Tensor:
    """2^exponent as f32, made of its bits. Exponents are int32 from -149 to 127."""
    normal, subnormal = (exponent + 127) << 23, 1 << (exponent + 149).clamp(0, 22)
    return torch.where(exponent < -126, subnormal, normal).view(torch.float32)


def encode(x: Tensor, kind: FloatType) -> Tensor:
    """The codes, uint8, of values f32 in a type of 8 bits or fewer with a zero."""
    magnitude = x.abs().clamp(max=kind.maximum) if kind.signed else x.clamp(0.0, kind.maximum)
    magnitude = magnitude.nan_to_num(nan=kind.maximum)
    exponent = (torch.frexp(magnitude).exponent - 1).clamp(min=kind.least_exponent)
    exponent = torch.where(magnitude == 0, kind.least_exponent, exponent)
    steps = torch.round(magnitude * two_to(kind.mantissa_bits - exponent)).int()
    codes = steps + ((exponent - kind.least_exponent) << kind.mantissa_bits)
    sign = 1 << (kind.exponent_bits + kind.mantissa_bits) if kind.signed else 0
    codes = torch.where(torch.signbit(x), codes + sign, codes)
    nan_code = kind.last_code if kind.nan_code is None else kind.nan_code
    return torch.where(torch.isnan(x), nan_code, codes).to(torch.uint8)


def decode(codes: Tensor, kind: FloatType, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of codes (uint8) of a type of 8 bits or fewer, exact in f32 and f64."""
    return torch.tensor(kind.values, dtype=dtype, device=codes.device)[codes.long()]


def pack(codes: Tensor, bits: int) -> Tensor:
    """The codes [..., K] of so many bits as bytes [..., K * bits / 8], the first in the low bits.

    Of fp4 the low nibble is first, of fp6 four are in three bytes.
    """
    return regrouped(codes, bits, 8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes [..., K] of bytes [..., K * bits / 8]: the inverse of pack."""
    return regrouped(packed, 8, bits)
