"""LightX2V's functions by gemmill's ops: those of `lightx2v_kernel.gemm`, and weight classes with MMWeight's interface."""

from gemmill.compat.lightx2v.gemm import (
    cutlass_scaled_mxfp4_mm,
    cutlass_scaled_mxfp4_mxfp8_mm,
    cutlass_scaled_mxfp6_mxfp8_mm,
    cutlass_scaled_mxfp8_mm,
    cutlass_scaled_mxfp8_mm_residual_gate,
    cutlass_scaled_nvfp4_mm,
    scaled_mxfp4_quant,
    scaled_mxfp6_quant,
    scaled_mxfp8_gelu_quant,
    scaled_mxfp8_modulate_quant,
    scaled_mxfp8_quant,
    scaled_nvfp4_quant,
)
from gemmill.compat.lightx2v.weights import (
    MM_WEIGHT_REGISTER,
    MMWeightWmxfp4Amxfp4dynamic,
    MMWeightWmxfp6Amxfp8dynamic,
    MMWeightWmxfp8Amxfp8dynamic,
    MMWeightWnvfp4Anvfp4dynamic,
)

__all__ = [
    "MM_WEIGHT_REGISTER",
    "MMWeightWmxfp4Amxfp4dynamic",
    "MMWeightWmxfp6Amxfp8dynamic",
    "MMWeightWmxfp8Amxfp8dynamic",
    "MMWeightWnvfp4Anvfp4dynamic",
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
