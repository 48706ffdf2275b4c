"""Operands of DeepGEMM's calls as gemmill's ops take them."""

import math
from functools import partial

import torch
from torch import Tensor

from gemmill.compat.deep_gemm.scales import Group, check_offered, f32_scales
from gemmill.compat.packed_once import packed_once
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.experts import PackedExperts, prepack_experts
from gemmill.vocab.format import MXFP4

Scaled = tuple[Tensor, Tensor]
"""Codes and their scales."""
_FP4 = (torch.int8, torch.uint8)
FP4_GROUPS = (Group(rows=1, columns=MXFP4.group), Group(rows=1, columns=128))
"""The groups of 4-bit codes, and of the e4m3 codes that multiply them."""


def pair_of(name: str, operand: str, given: Scaled, rank: int) -> tuple[Tensor, Tensor, bool]:
    """Codes of `rank` dimensions, their scales, and whether the codes have 4 bits.

    Raises RuntimeError, in a sentence, for an operand that is no pair, and for other dtypes and ranks.
    """
    if isinstance(given, Tensor) or len(given) != 2:
        raise RuntimeError(f"{name}: {operand} is {type(given).__name__}, expected a tuple of codes and their scales")
    codes, scales = given
    is_fp4 = operand == "b" and codes.dtype in _FP4
    if codes.dim() != rank or not (is_fp4 or codes.dtype == torch.float8_e4m3fn):
        packed = (
            ", or torch.int8 of two 4-bit codes each" if operand == "b" else ": codes of 4 bits are offered of b alone"
        )
        raise RuntimeError(
            f"{name}: {operand} is {codes.dtype} {list(codes.shape)}, expected {rank} dimensions of torch.float8_e4m3fn{packed}"
        )
    return codes, scales, is_fp4


def check_endings(name: str, alpha: object, epilogue: object) -> None:
    """Raises RuntimeError for alpha and epilogue, which DeepGEMM has since 2.8, and gemmill has not."""
    for argument, given in (("alpha", alpha), ("epilogue", epilogue)):
        if given is not None:
            raise RuntimeError(
                f"{name}: {argument} is given, and gemmill has no such ending: leave it out, and change d afterwards"
            )


def in_rows(x: Tensor) -> Tensor:
    """x itself where K lies without gaps, as gemmill's kernels read it; else a copy, which the transposed forms take."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def widened(name: str, codes: Tensor, scales: Tensor, group: Group) -> Tensor:
    """bf16 [..., M, K] of e4m3 codes and their scales: exact where these are powers of two, as DeepGEMM casts them."""
    check_offered(name, "a", group, FP4_GROUPS)
    k = codes.shape[-1]
    values = f32_scales(name, "a", scales, tuple(codes.shape), group)
    columns = math.gcd(group.columns, k)
    each = values.repeat_interleave(group.columns // columns, dim=-1)[..., : k // columns]
    wide = codes.to(torch.bfloat16).contiguous()
    wide.unflatten(-1, (-1, columns)).mul_(each.to(torch.bfloat16)[..., None])
    return wide


def packed_fp4(name: str, codes: Tensor, scales: Tensor, group: Group) -> PackedExperts:
    """4-bit codes [E, N, K / 2] and their scales, powers of two, in the order of gemmill's kernels: packed once and kept.

    Raises RuntimeError, in a sentence, for codes in pairs along N, and for scales other than powers of two.
    """
    check_offered(name, "b", group, FP4_GROUPS)
    if codes.stride(-1) != 1:
        raise RuntimeError(
            f"{name}: b of 4-bit codes has strides {list(codes.stride())}, and gemmill's kernels take pairs along K: give it K-major"
        )
    pack = partial(_packed, name, codes, scales, group)
    return packed_once(name, (codes, scales), group, pack)


def _packed(name: str, codes: Tensor, scales: Tensor, group: Group) -> PackedExperts:
    experts, n, half = codes.shape
    exponents = _exponents(name, scales, (experts, n, 2 * half), group)
    each = exponents.repeat_interleave(group.columns // MXFP4.group, dim=-1)[..., : 2 * half // MXFP4.group]
    bytes_ = codes.view(torch.uint8).contiguous()
    weights = [BlockScaled(format=MXFP4, codes=of, scales=by) for of, by in zip(bytes_, each, strict=True)]
    return prepack_experts(weights)


def _exponents(name: str, scales: Tensor, shape: tuple[int, int, int], group: Group) -> Tensor:
    """ue8m0 bytes uint8 [E, N, K / group.columns] of scales in powers of two."""
    values = f32_scales(name, "b", scales, shape, group)
    if scales.dtype == torch.int32:
        return scales.contiguous().view(torch.uint8)[..., : values.shape[-1]]
    bits = values.contiguous().view(torch.int32)
    if (wrong := (bits & ((1 << 23) - 1) != 0) | (bits < 0)).any():
        place = wrong.nonzero()[0].tolist()
        raise RuntimeError(
            f"{name}: scale {place} of b is {float(values[tuple(place)]):g}, expected a power of two with 4-bit codes"
        )
    return (bits >> 23).to(torch.uint8)
