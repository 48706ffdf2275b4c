"""The functions of `lightx2v_kernel.gemm`, by gemmill's ops: their names, arguments and dtypes.

Codes are uint8 and scales swizzled, those of mx formats as float8_e8m0fnu and rounded up. LightX2V has kernels for
sm120f only; these run wherever the build has variants, and on CPU tensors.
"""

import torch

import gemmill

__all__ = [
    "cutlass_scaled_mxfp4_mm",
    "cutlass_scaled_mxfp4_mxfp8_mm",
    "cutlass_scaled_mxfp6_mxfp8_mm",
    "cutlass_scaled_mxfp8_mm",
    "cutlass_scaled_mxfp8_mm_residual_gate",
    "cutlass_scaled_nvfp4_mm",
    "scaled_mxfp4_quant",
    "scaled_mxfp6_quant",
    "scaled_mxfp8_gelu_quant",
    "scaled_mxfp8_modulate_quant",
    "scaled_mxfp8_quant",
    "scaled_nvfp4_quant",
]
Pair = tuple[torch.Tensor, torch.Tensor]


def cutlass_scaled_nvfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """bfloat16 [M, N] = alpha * mat_a mat_b^T + bias, of nvfp4 codes [M, K / 2] and [N, K / 2]; bias is [N] or [1, N]."""
    return gemmill.cutlass_scaled_nvfp4_mm(mat_a, mat_b, scales_a, scales_b, alpha, bias)


def cutlass_scaled_mxfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same of mxfp4."""
    return gemmill.cutlass_scaled_mxfp4_mm(mat_a, mat_b, _bytes(scales_a), _bytes(scales_b), alpha, bias)


def cutlass_scaled_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same of mxfp8, [M, K] and [N, K]."""
    return gemmill.cutlass_scaled_mxfp8_mm(mat_a, mat_b, _bytes(scales_a), _bytes(scales_b), alpha, bias)


def cutlass_scaled_mxfp8_mm_residual_gate(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    residual: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write residual + gate * (alpha * mat_a mat_b^T + bias) of mxfp8 to `residual`, bfloat16 [M, N], and return it.

    gate is bfloat16 [N] or [M, N]. The product in parentheses first rounds to bfloat16, then the sum, which a kernel of
    torch makes: as LightX2V does with a gate of [M, N]. With [N] LightX2V rounds the sum alone. Raises RuntimeError, in
    a sentence, for a residual or gate of another type or shape, before anything is written.
    """
    shape, name = (mat_a.shape[0], mat_b.shape[0]), "cutlass_scaled_mxfp8_mm_residual_gate"
    if residual.dtype != torch.bfloat16 or residual.shape != shape:
        raise RuntimeError(
            f"{name}: residual is {residual.dtype} {list(residual.shape)}, expected torch.bfloat16 {list(shape)}"
        )
    if gate.dtype != torch.bfloat16 or gate.shape not in (shape, shape[1:]) or gate.device != residual.device:
        raise RuntimeError(
            f"{name}: gate is {gate.dtype} {list(gate.shape)} on {gate.device}, expected torch.bfloat16 {list(shape[1:])} or "
            f"{list(shape)} on {residual.device}"
        )
    product = cutlass_scaled_mxfp8_mm(mat_a, mat_b, scales_a, scales_b, alpha, bias)
    return residual.addcmul_(product, gate)


def cutlass_scaled_mxfp6_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same of mxfp8 activations [M, K] and mxfp6 weights [N, 3 K / 4]."""
    return gemmill.cutlass_scaled_mxfp6_mxfp8_mm(mat_a, mat_b, _bytes(scales_a), _bytes(scales_b), alpha, bias)


def cutlass_scaled_mxfp4_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same of mxfp8 activations [M, K] and mxfp4 weights [N, K / 2]."""
    return gemmill.cutlass_scaled_mxfp4_mxfp8_mm(mat_a, mat_b, _bytes(scales_a), _bytes(scales_b), alpha, bias)


def scaled_nvfp4_quant(input: torch.Tensor, input_global_scale: torch.Tensor) -> Pair:
    """Codes uint8 [M, K / 2] and swizzled scales float8_e4m3fn of input [M, K], bf16 or f16."""
    return gemmill.scaled_nvfp4_quant(input, input_global_scale)


def scaled_mxfp4_quant(input: torch.Tensor) -> Pair:
    """The same in mxfp4, with scales float8_e8m0fnu."""
    return _of_mx(gemmill.scaled_mxfp4_quant(input, "up"))


def scaled_mxfp6_quant(input: torch.Tensor) -> Pair:
    """The same in mxfp6: codes are [M, 3 K / 4]."""
    return _of_mx(gemmill.scaled_mxfp6_quant(input, "up"))


def scaled_mxfp8_quant(input: torch.Tensor) -> Pair:
    """The same in mxfp8: codes are uint8 [M, K]."""
    return _of_mx(gemmill.scaled_mxfp8_quant(input, "up"))


def scaled_mxfp8_gelu_quant(input: torch.Tensor) -> Pair:
    """The same of GELU by tanh of input, rounded to input's dtype before coding."""
    return _of_mx(gemmill.scaled_mxfp8_gelu_quant(input, "gelu_tanh", "up", rounds_to_input=True))


def scaled_mxfp8_modulate_quant(input: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Pair:
    """The same of input * (1 + scale) + shift, rounded to input's dtype before coding.

    scale and shift have K or M K values, in any number of dimensions.
    """
    given = (_modulation(x, input) for x in (scale, shift))
    return _of_mx(gemmill.scaled_mxfp8_modulate_quant(input, *given, "up", rounds_to_input=True))


def _modulation(values: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Values [K], or of input's shape; others as they are, which the op refuses."""
    for shape in (input.shape[-1:], input.shape):
        if values.numel() == shape.numel():
            return values.reshape(shape).contiguous()
    return values


def _bytes(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(torch.uint8)


def _of_mx(made: Pair) -> Pair:
    codes, scales = made
    return codes.view(torch.uint8), scales.view(torch.float8_e8m0fnu)
