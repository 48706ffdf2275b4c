"""vLLM's linear kernels with gemmill's GEMMs: as vLLM 0.33's own, which quantise the activations and prepare the weights.

4-bit weights are multiplied by activations as they are, as Marlin's kernels do it, which go on serving what no variant fits.
"""

import torch
import vllm.envs as envs
from vllm import _custom_ops
from vllm.model_executor.kernels.linear import (
    CutlassFp8BlockScaledMMKernel,
    CutlassInt8ScaledMMLinearKernel,
    FP8ScaledMMLinearKernel,
    MarlinMxFp4LinearKernel,
    MarlinNvFp4LinearKernel,
)

import gemmill
from gemmill.compat.linear import BLOCK, Linear, absence, packed_fp4, refusal, row_of

Answer = tuple[bool, str | None]
_SOME = 4096
"""The N and K of a layer that stands for those whose sizes are not known yet."""


def _answer(why: str | None) -> Answer:
    return why is None, why


class _OnThisGpu:
    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        """Whether a build for this GPU is there."""
        if envs.VLLM_BATCH_INVARIANT:
            return False, "gemmill chooses variants by the number of rows, and VLLM_BATCH_INVARIANT is set"
        return _answer(absence(compute_capability))


class GemmillFP8Linear(_OnThisGpu, FP8ScaledMMLinearKernel):
    """FP8 with a scale per tensor or channel of the weight, and per tensor or token of the activations."""

    @classmethod
    def can_implement(cls, c) -> Answer:
        """Whether the build has variants for the layer."""
        groups = (c.weight_quant_key.scale.group_shape, c.activation_quant_key.scale.group_shape)
        if any(group.row > 1 or group.col > 1 for group in groups):
            return False, "it takes scales per tensor, token and channel"
        n, k = c.weight_shape
        codes = c.weight_quant_key.dtype
        return _answer(refusal(Linear(n=n, k=k, codes=codes, out_dtype=c.out_dtype or c.input_dtype)))

    def input_quant_key(self):
        """That of activations with a given scale: an earlier kernel may make the codes."""
        key = self.config.activation_quant_key
        return key if key.scale.static and key.scale.group_shape.is_per_tensor() else None

    def apply_scaled_mm(self, *, A, B, out_dtype, As, Bs, bias, output_shape) -> torch.Tensor:
        """A [M, K] and B [K, N], column-major, with their scales; the result has `output_shape`."""
        return gemmill.cutlass_scaled_mm(A, B, As, row_of(Bs), out_dtype, bias).view(*output_shape)


class GemmillBlockFP8Linear(_OnThisGpu, CutlassFp8BlockScaledMMKernel):
    """FP8 with scales of 1 x 128 of the activations and 128 x 128 of the weight."""

    @classmethod
    def can_implement(cls, config) -> Answer:
        """Whether the build has variants for the layer."""
        fits, why = super().can_implement(config)
        if not fits:
            return fits, why
        weight = config.weight_quant_key
        if tuple(weight.scale.group_shape) != (BLOCK, BLOCK) or weight.scale.dtype != torch.float32:
            return False, f"it takes scales of float32 of {BLOCK} x {BLOCK} of the weight"
        n, k = config.weight_shape
        return _answer(refusal(Linear(n=n, k=k, codes=weight.dtype, out_dtype=config.out_dtype, blocks=True)))

    def apply_block_scaled_mm(self, A, B, As, Bs) -> torch.Tensor:
        """A [M, K] and B [N, K] with scales [M, K/128] and [N/128, K/128]; the result is [M, N]."""
        return gemmill.cutlass_scaled_mm(A, B.t(), As, Bs.t(), self.config.out_dtype)


class GemmillInt8Linear(_OnThisGpu, CutlassInt8ScaledMMLinearKernel):
    """INT8 with scales per tensor, token and channel, and zero points of the activations."""

    @classmethod
    def can_implement(cls, c) -> Answer:
        """Whether the build has variants for such layers; of which size is not known yet."""
        return _answer(refusal(_int8(_SOME, _SOME, torch.bfloat16, not c.input_symmetric)))

    def process_weights_after_loading(self, layer) -> None:
        """As vLLM's kernel; then N and K are known, and whether a variant fits them."""
        super().process_weights_after_loading(layer)
        weight, *_, azp_adj = self._get_layer_params(layer)
        k, n = weight.shape
        out_dtype = getattr(layer, "orig_dtype", torch.bfloat16)
        self._taken = refusal(_int8(n, k, out_dtype, azp_adj is not None)) is None

    def apply_weights(self, layer, x, bias=None) -> torch.Tensor:
        """x [..., K] of bf16 or f16, the result [..., N] of the same; vLLM's own kernel where no variant fits the weight."""
        if not self._taken:
            return super().apply_weights(layer, x, bias)
        weight, w_scales, in_scale, in_azp, azp_adj = self._get_layer_params(layer)
        k, n = weight.shape
        codes, scales, azp = _custom_ops.scaled_int8_quant(
            x.reshape(-1, k), in_scale, in_azp, symmetric=azp_adj is None
        )
        operands = (codes, weight, scales, row_of(w_scales), x.dtype)
        if azp_adj is None:
            out = gemmill.cutlass_scaled_mm(*operands, bias)
        else:  # of activations with a given zero point, azp_adj is a multiple of it
            out = gemmill.cutlass_scaled_mm_azp(*operands, azp_adj.reshape(-1), azp if in_azp is None else None, bias)
        return out.view(*x.shape[:-1], n)


def _int8(n: int, k: int, out_dtype: torch.dtype, azp: bool) -> Linear:
    return Linear(n=n, k=k, codes=torch.int8, out_dtype=out_dtype, azp=azp)


class _Fp4Linear(_OnThisGpu):
    """The common part of layers of 4-bit weights. The other base is Marlin's kernel."""

    format: str

    @classmethod
    def can_implement(cls, config) -> Answer:
        """Whether the build has variants for such layers; of which size is not known yet."""
        fits, why = super().can_implement(config)
        return _answer(refusal(_fp4(cls.format, _SOME, _SOME, torch.bfloat16))) if fits else (fits, why)

    def process_weights_after_loading(self, layer) -> None:
        """Pack weight [N, K / 2] and weight_scale [N, K / group] for the kernels, where a variant fits; else as Marlin's."""
        n, k = layer.weight.shape[0], 2 * layer.weight.shape[1]
        packed = None
        if refusal(_fp4(self.format, n, k, layer.params_dtype)) is None:
            packed = packed_fp4(self.format, layer.weight.data, layer.weight_scale.data)
        self._taken = packed is not None
        if packed is None:
            super().process_weights_after_loading(layer)
            return
        for name, tensor in zip(("weight", "weight_scale"), packed, strict=True):
            setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
        of_all = getattr(layer, "weight_global_scale", None)  # multiplies here, whatever the checkpoint has
        self._alpha = None if of_all is None else of_all.data.float().reshape(1)

    def apply_weights(self, layer, x, bias=None) -> torch.Tensor:
        """x [..., K], the result [..., N] of its dtype; Marlin's kernel where no variant fits the weight."""
        if not self._taken:
            return super().apply_weights(layer, x, bias)
        rows = x.reshape(-1, x.shape[-1])
        out = gemmill.fp4_weight_mm(rows, layer.weight, layer.weight_scale, self._alpha, bias, format=self.format)
        return out.view(*x.shape[:-1], out.shape[-1])


class GemmillNvFp4Linear(_Fp4Linear, MarlinNvFp4LinearKernel):
    """nvfp4 weights, activations of bf16."""

    format = "nvfp4"


class GemmillMxFp4Linear(_Fp4Linear, MarlinMxFp4LinearKernel):
    """mxfp4 weights, activations of bf16."""

    format = "mxfp4"


def _fp4(format: str, n: int, k: int, dtype: torch.dtype) -> Linear:
    return Linear(n=n, k=k, codes=dtype, out_dtype=dtype, format=format)
