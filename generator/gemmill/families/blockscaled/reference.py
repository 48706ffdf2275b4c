"""References of the block-scaled GEMM, of GEMMs with block-scaled weights, and of their fused quantisation."""

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled


def exact_mm(a: Tensor, b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """alpha * (sum over k of a[m, k] b[n, k]) + bias[n], float64 [M, N].

    a [M, K] and b [N, K] are float64 values. alpha is f32: one value, or any shape that broadcasts. Raises ValueError where K
    differs.
    """
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a has K = {a.shape[1]} and b has K = {b.shape[1]}: a GEMM sums over one K")
    result = a @ b.t()
    if alpha is not None:
        result = alpha.double() * result
    return result if bias is None else result + bias.double()


def block_scaled_mm(
    a: BlockScaled, b: BlockScaled, out_dtype: torch.dtype, alpha: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """alpha * sum over k of sf_a sf_b a b + bias, [M, N]: exact_mm rounded to f32, then to the result's type.

    alpha is 1 / (global scale of a * global scale of b). CUTLASS's example 72 computes it.
    """
    return rounded(exact_mm(a.values(), b.values(), alpha, bias), out_dtype)


def weight_mm(a: Tensor, b: BlockScaled, alpha: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """block_scaled_mm of activations a [M, K] in bf16 or f16; the result has their dtype."""
    return rounded(exact_mm(a.double(), b.values(), alpha, bias), a.dtype)


def rounded(exact: Tensor, out_dtype: torch.dtype) -> Tensor:
    """An exact result, rounded to f32 and then to the result's type, as an epilogue stores it."""
    return exact.float().to(out_dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) * up in f32 [rows, hidden] of x [rows, 2 hidden] = gate then up: (gate * (1 / (1 + exp(-gate)))) * up."""
    gate, up = x.float().chunk(2, dim=-1)
    return gate * torch.reciprocal(1.0 + torch.exp(-gate)) * up


def gelu(x: Tensor, *, tanh: bool) -> Tensor:
    """GELU in f32, the one with tanh or the one with erf, not gated."""
    x = x.float()
    if tanh:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))


def modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * (1 + scale) + shift in f32, with three roundings, as LightX2V computes it; scale and shift broadcast to x [rows,
    K]."""
    return x.float() * (1.0 + scale.float()) + shift.float()
