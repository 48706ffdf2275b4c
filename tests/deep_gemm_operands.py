"""Operands of DeepGEMM's calls, of which results are exact: codes are small integers, scales powers of two."""

import torch
from torch import Tensor

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
E, N, K = 3, 136, 160
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Integers from -2 to 2, float64."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed + sum(shape))).double()


def powers(*shape: int) -> Tensor:
    """From 1/8 to 8, float32."""
    return 2.0 ** torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def spread(scales: Tensor, shape: tuple[int, ...], rows: int, columns: int) -> Tensor:
    """A scale for each element of [..., rows, K]."""
    each = scales.double().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return each[..., : shape[-2], : shape[-1]]


def packed_words(scales: Tensor) -> Tensor:
    """ue8m0 bytes of scales, four to an int32, M-major as DeepGEMM has them."""
    bytes_ = (scales.log2() + 127).to(torch.uint8)
    bytes_ = torch.nn.functional.pad(bytes_, (0, -scales.shape[-1] % 4), value=255)
    return bytes_.view(torch.int32).mT.contiguous().mT


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=BF16)


def rounded(x: Tensor) -> Tensor:
    return x.float().to(BF16)


class Operands:
    """Codes and scales of A [rows, K] and of B [E, N, K], with the values that they stand for."""

    def __init__(self, rows: int, b_rows: int = 128) -> None:
        self.a, self.b = drawn(rows, K).to(E4M3), drawn(E, N, K).to(E4M3)
        self.a_scales, self.b_scales = powers(rows, 2), powers(E, -(-N // b_rows), 2)
        self.x = self.a.double() * spread(self.a_scales, (rows, K), 1, 128)
        self.w = self.b.double() * spread(self.b_scales, (E, N, K), b_rows, 128)


class Fp4:
    """4-bit weights [E, N, K / 2] with scales for each 1 x `columns`."""

    def __init__(self, columns: int = 32) -> None:
        codes = torch.randint(0, 16, (E, N, K), generator=torch.Generator().manual_seed(columns))
        self.b = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8).view(torch.int8)
        self.b_scales = powers(E, N, -(-K // columns))
        self.w = FP4[codes] * spread(self.b_scales, (E, N, K), 1, columns)
