"""vLLM's linear kernels with gemmill's GEMMs: as vLLM 0.33's own, which quantise the activations and prepare the weights.

Each class derives from the kernel of vLLM's that goes on serving calls without a variant, and layers whose trial call
fails. Where both read the same weights the plugin times both, and each serves the rows for which it is faster. 4-bit
weights multiply activations as they are, as in Marlin's kernels.
"""

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch
from vllm import _custom_ops
from vllm.model_executor.kernels.linear import (
    CutlassFp8BlockScaledMMKernel,
    CutlassFP8ScaledMMLinearKernel,
    CutlassInt8ScaledMMLinearKernel,
    MarlinMxFp4LinearKernel,
    MarlinNvFp4LinearKernel,
    TritonFp8BlockScaledMMKernel,
)

import gemmill
from gemmill.compat import invariance
from gemmill.compat.linear import (
    BLOCK,
    BLOCKS,
    FINE_BLOCK,
    Linear,
    absence,
    first_call_passes,
    packed_fp4,
    refusal,
    row_of,
    take,
)
from gemmill.compat.vllm import gate_up
from gemmill.compat.vllm.contest import Split, by_rows, own_mm, split
from gemmill.compat.vllm.unpacked import name_of, nvfp4_mm, unpacking
from gemmill.runtime import served

Answer = tuple[bool, str | None]
_SOME = 4096
"""The N and K of a layer in place of unknown ones."""


def _answer(why: str | None) -> Answer:
    return why is None, why


def _left(what: str, why: str) -> Answer:
    """vLLM does not say why its kernels serve."""
    served.left(what, why)
    return False, why


def _mm_of_vllm(a, b, a_scales, b_scales, out_dtype, azp_adj, azp, bias) -> torch.Tensor:
    """vLLM's kernel of the operands of `own_mm`."""
    if azp_adj is None:
        return _custom_ops.cutlass_scaled_mm(a, b, a_scales, b_scales, out_dtype, bias)
    return _custom_ops.cutlass_scaled_mm_azp(a, b, a_scales, b_scales, out_dtype, azp_adj, azp, bias)


class _OnThisGpu:
    _taken = True
    """Whether gemmill serves the layer. The processing of its weights decides."""
    _split: Split | None = None
    """Which rows it serves, where it does not serve all."""
    _name = ""
    """The layer's name, for the op that looks up its split."""
    _views: dict[str, tuple[int, torch.Tensor]] = MappingProxyType({})
    """Views of the layer's tensors by name, each with the address that it was made at; for each layer its own."""
    _params: tuple = (None,)
    """The layer's tensors, the weight first; None before the first call."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        """Whether a build for this GPU is there."""
        why = invariance.of_vllm() or absence(compute_capability)
        return (True, None) if why is None else _left(f"layer of {cls.__name__}", why)


def _once(kernel: _OnThisGpu, name: str, view: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The view of a layer's tensor, made again where it lies elsewhere: a view takes the host as long as the rest of a call.

    Compiled graphs make it themselves, for a tensor of the kernel's would be a constant there.
    """
    if torch.compiler.is_compiling():
        return view(x)
    at, kept = kernel._views.get(name, (None, None))
    if at != x.data_ptr():
        kept = view(x)
        kernel._views = {**kernel._views, name: (x.data_ptr(), kept)}
    return kept


def _contest(kernel: _OnThisGpu, kind: Linear, layer, *operands: torch.Tensor | None) -> None:
    """Try a layer's first call, of `own_mm`'s operands but for out_dtype, and find out which rows gemmill serves."""
    theirs = _triton_of_vllm if kind.blocks == FINE_BLOCK else _mm_of_vllm

    def call(a, b, a_scales, b_scales, *more):
        return own_mm(a, b, a_scales, b_scales, kind.out_dtype, *more)

    kernel._split, kernel._name, kernel._views, kernel._params = None, str(kind), {}, (None,)
    kernel._taken = first_call_passes(kind, call, *operands)
    if not kernel._taken:
        return
    # Rows of one layer are not dealt out to two kernels under the contract.
    found = None if invariance.vllm_asks() else split(kind, theirs, *operands[1:])
    if found is not None and found.is_engines:
        kernel._taken = False
        served.left(str(kind), f"its kernel takes less time ({found.times})")
        return
    kernel._split = found if found is not None and found.changes else None
    take(kind, type(kernel).__name__, layer, "" if found is None else str(found))


def _triton_of_vllm(a, b, a_scales, b_scales, out_dtype, azp_adj, azp, bias) -> torch.Tensor:
    """vLLM's Triton kernel of the same operands, in blocks of 32."""
    sizes = [FINE_BLOCK, FINE_BLOCK]
    return torch.ops.vllm.w8a8_triton_block_scaled_mm_func(a, b.t(), a_scales, b_scales.t(), sizes, out_dtype)


def _fp8(c, n: int, k: int, blocks: int = 0) -> Linear:
    return Linear(n=n, k=k, codes=c.weight_quant_key.dtype, out_dtype=c.out_dtype or c.input_dtype, blocks=blocks)


def _ones(*shape: int, like: torch.Tensor) -> torch.Tensor:
    """Scales of activations for a trial call."""
    return torch.ones(shape, dtype=torch.float32, device=like.device)


class GemmillFP8Linear(_OnThisGpu, CutlassFP8ScaledMMLinearKernel):
    """FP8 with a scale per tensor or channel of the weight, and per tensor or token of the activations."""

    _order: gate_up.Order | None = None
    """Of the rows of a gate_up layer's weights, where a graph may make one op of it and SiLU."""

    @classmethod
    def can_implement(cls, c) -> Answer:
        """Whether the build has variants for the layer."""
        layer = _fp8(c, *c.weight_shape)
        groups = (c.weight_quant_key.scale.group_shape, c.activation_quant_key.scale.group_shape)
        if any(group.row > 1 or group.col > 1 for group in groups):
            return _left(
                f"linear layer of N x K = {layer.n} x {layer.k}", "it takes scales per tensor, token and channel"
            )
        return _answer(refusal(layer))

    def input_quant_key(self):
        """That of activations with a given scale: an earlier kernel may make the codes."""
        key = self.config.activation_quant_key
        return key if key.scale.static and key.scale.group_shape.is_per_tensor() else None

    def process_weights_after_loading(self, layer) -> None:
        """Leave the weights as they are. vLLM's kernel prepares its own where it serves."""
        weight, w_scales, in_scale, _ = self._get_layer_params(layer)
        k, n = weight.shape
        per_tensor = self.config.activation_quant_key.scale.group_shape.is_per_tensor()
        scales = in_scale if in_scale is not None else _ones(*((1,) if per_tensor else (1, 1)), like=weight)
        operands = (weight.new_zeros(1, k), weight, scales, w_scales, None, None, getattr(layer, "bias", None))
        kind = _fp8(self.config, n, k)
        _contest(self, kind, layer, *operands)
        if self._split is not None or not self._taken:
            super().process_weights_after_loading(layer)
        if self._order is not None or (self._taken and self.input_quant_key() is not None):
            self._order = gate_up.order_of(self._order, layer, kind, weight, scales, w_scales)

    def apply_scaled_mm(self, *, A, B, out_dtype, As, Bs, bias, output_shape) -> torch.Tensor:
        """A [M, K] and B [K, N], column-major, with their scales; the result has `output_shape`."""
        compiles = torch.compiler.is_compiling()
        if self._order is not None and (compiles or self._order.is_packed):
            out = gate_up.product(A, B, As, Bs, out_dtype, self._name)
        elif self._split is not None and compiles:
            out = by_rows(A, B, As, Bs, out_dtype, None, None, bias, self._name)
        elif self._taken and (self._split is None or self._split.is_ours(A.shape[0])):
            out = gemmill.cutlass_scaled_mm(A, B, As, _once(self, "scales", row_of, Bs), out_dtype, bias)
        else:
            given = {"A": A, "B": B, "out_dtype": out_dtype, "As": As, "Bs": Bs, "bias": bias}
            return super().apply_scaled_mm(**given, output_shape=output_shape)
        return out if len(output_shape) == 2 else out.view(*output_shape)


class _BlockFP8(_OnThisGpu):
    """The common part of layers whose scales are of blocks. The other base is vLLM's kernel."""

    size: int

    @classmethod
    def can_implement(cls, config) -> Answer:
        """Whether the build has variants for the layer."""
        layer, weight = _fp8(config, *config.weight_shape, blocks=cls.size), config.weight_quant_key
        what = f"linear layer of N x K = {layer.n} x {layer.k} with scales of blocks"
        block, group = tuple(weight.scale.group_shape), tuple(config.activation_quant_key.scale.group_shape)
        if block != (cls.size, cls.size) and block in [(size, size) for size in BLOCKS]:
            return False, f"it takes blocks of {cls.size}"  # and another class of gemmill's takes these
        fits, why = super().can_implement(config)
        if not fits:
            return _left(what, why)
        if block != (cls.size, cls.size) or weight.scale.dtype != torch.float32:
            known = " or ".join(f"{size} x {size}" for size in BLOCKS)
            return _left(what, f"it takes scales of float32 of {known} of the weight")
        if group != (1, cls.size):
            return _left(what, f"it takes scales of 1 x {cls.size} of the activations")
        return _answer(refusal(layer))

    def process_weights_after_loading(self, layer) -> None:
        """As vLLM's kernel, which serves where the first call fails, and rows for which it is faster. Scales of ue8m0 become float32."""
        super().process_weights_after_loading(layer)
        found = self._get_layer_params(layer)
        if found.block_scale.dtype is torch.float8_e8m0fnu:
            setattr(layer, found.block_scale_attr, torch.nn.Parameter(found.block_scale.float(), requires_grad=False))
            found = self._get_layer_params(layer)
        n, k = found.weight.shape
        scales = _ones(-(-k // self.size), 1, like=found.weight).t()
        operands = (found.weight.new_zeros(1, k), found.weight.t(), scales, found.block_scale.t(), None, None, None)
        _contest(self, _fp8(self.config, n, k, blocks=self.size), layer, *operands)

    def apply_block_scaled_mm(self, A, B, As, Bs) -> torch.Tensor:
        """A [M, K] and B [N, K] with scales [M, K/size] and [N/size, K/size]; the result is [M, N]."""
        if self._split is not None and torch.compiler.is_compiling():
            return by_rows(A, B.t(), As, Bs.t(), self.config.out_dtype, None, None, None, self._name)
        if self._taken and (self._split is None or self._split.is_ours(A.shape[0])):
            b, b_scales = _once(self, "weight", torch.Tensor.t, B), _once(self, "scales", torch.Tensor.t, Bs)
            return gemmill.cutlass_scaled_mm(A, b, As, b_scales, self.config.out_dtype)
        return super().apply_block_scaled_mm(A, B, As, Bs)


class GemmillBlockFP8Linear(_BlockFP8, CutlassFp8BlockScaledMMKernel):
    """FP8 with scales of 1 x 128 of the activations and 128 x 128 of the weight."""

    size = BLOCK


class GemmillFineBlockFP8Linear(_BlockFP8, TritonFp8BlockScaledMMKernel):
    """FP8 with scales of 1 x 32 of the activations and 32 x 32 of the weight, which of vLLM's kernels Triton's takes."""

    size = FINE_BLOCK


class GemmillInt8Linear(_OnThisGpu, CutlassInt8ScaledMMLinearKernel):
    """INT8 with scales per tensor, token and channel, and zero points of the activations."""

    @classmethod
    def can_implement(cls, c) -> Answer:
        """Whether the build has variants for such layers, whose size is unknown yet."""
        return _answer(refusal(_int8(_SOME, _SOME, torch.bfloat16, not c.input_symmetric)))

    def process_weights_after_loading(self, layer) -> None:
        """As vLLM's kernel; then N and K are known, and whether a variant fits them and the first call passes."""
        super().process_weights_after_loading(layer)
        weight, w_scales, in_scale, in_azp, azp_adj = self._get_layer_params(layer)
        k, n = weight.shape
        out_dtype = getattr(layer, "orig_dtype", torch.bfloat16)
        kind = _int8(n, k, out_dtype, azp_adj is not None)
        self._taken = refusal(kind) is None
        if self._taken:
            a, scales = weight.new_zeros(1, k), _ones(1, 1, like=weight) if in_scale is None else in_scale
            azp = None if azp_adj is None or in_azp is not None else weight.new_zeros((1, 1), dtype=torch.int32)
            _contest(self, kind, layer, a, weight, scales, w_scales, azp_adj, azp, getattr(layer, "bias", None))

    def apply_weights(self, layer, x, bias=None) -> torch.Tensor:
        """x [..., K] of bf16 or f16, the result [..., N] of the same; vLLM's own kernel where gemmill does not serve."""
        if not self._taken:
            return super().apply_weights(layer, x, bias)
        compiles, is_flat = torch.compiler.is_compiling(), x.dim() == 2
        params = self._params
        if compiles:
            params = self._get_layer_params(layer)
        elif params[0] is not getattr(layer, self.layer_param_names[0]):
            params = self._params = self._get_layer_params(layer)
        weight, w_scales, in_scale, in_azp, azp_adj = params
        rows = x if is_flat else x.reshape(-1, x.shape[-1])
        codes, scales, azp = _custom_ops.scaled_int8_quant(rows, in_scale, in_azp, symmetric=azp_adj is None)
        azp = azp if in_azp is None else None
        if self._split is not None and compiles:
            out = by_rows(codes, weight, scales, w_scales, x.dtype, azp_adj, azp, bias, self._name)
        elif self._split is None or self._split.is_ours(codes.shape[0]):
            row = _once(self, "scales", row_of, w_scales)
            if azp_adj is None:
                out = gemmill.cutlass_scaled_mm(codes, weight, scales, row, x.dtype, bias)
            else:
                flat = _once(self, "adjustments", torch.Tensor.flatten, azp_adj)
                out = gemmill.cutlass_scaled_mm_azp(codes, weight, scales, row, x.dtype, flat, azp, bias)
        else:
            out = _mm_of_vllm(codes, weight, scales, w_scales, x.dtype, azp_adj, azp, bias)
        return out if is_flat else out.view(*x.shape[:-1], out.shape[-1])


def _int8(n: int, k: int, out_dtype: torch.dtype, azp: bool) -> Linear:
    return Linear(n=n, k=k, codes=torch.int8, out_dtype=out_dtype, azp=azp)


class _Fp4Linear(_OnThisGpu):
    """The common part of layers of 4-bit weights. The other base is Marlin's kernel."""

    format: str
    _least: int | None = None
    """The least rows for which its weights are unpacked; None where they never are."""

    @classmethod
    def can_implement(cls, config) -> Answer:
        """Whether the build has variants for such layers, whose size is unknown yet."""
        fits, why = super().can_implement(config)
        return _answer(refusal(_fp4(cls.format, _SOME, _SOME, torch.bfloat16))) if fits else (fits, why)

    def process_weights_after_loading(self, layer) -> None:
        """Pack weight [N, K / 2] and weight_scale [N, K / group] for the kernels, where a variant fits; else as Marlin's.

        The layer has its own weights until the first call of the packed ones has passed.
        """
        self._params = (None,)
        n, k = layer.weight.shape[0], 2 * layer.weight.shape[1]
        kind, packed = _fp4(self.format, n, k, layer.params_dtype), None
        if refusal(kind) is None:
            packed = packed_fp4(self.format, layer.weight.data, layer.weight_scale.data)
        of_all = getattr(layer, "weight_global_scale", None)  # multiplies here, whatever the checkpoint has
        self._alpha = None if of_all is None else of_all.data.float().reshape(1)
        bias = getattr(layer, "bias", None)
        if packed is not None:
            x = torch.zeros((1, k), dtype=layer.params_dtype, device=layer.weight.device)
            call = partial(gemmill.fp4_weight_mm, format=self.format)
            packed = packed if first_call_passes(kind, call, x, *packed, self._alpha, bias) else None
        self._taken = packed is not None
        if packed is None:
            super().process_weights_after_loading(layer)
            return
        for name, tensor in zip(("weight", "weight_scale"), packed, strict=True):
            setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
        found = unpacking(kind, *packed, self._alpha, None if bias is None else bias.data)
        self._name, self._least = name_of(kind, bias), None if found is None else found.least
        take(kind, type(self).__name__, layer, "" if found is None else str(found))

    def apply_weights(self, layer, x, bias=None) -> torch.Tensor:
        """x [..., K], the result [..., N] of its dtype; Marlin's kernel where gemmill does not serve."""
        if not self._taken:
            return super().apply_weights(layer, x, bias)
        params, weight = self._params, layer.weight
        compiles, is_flat = torch.compiler.is_compiling(), x.dim() == 2
        if compiles:
            params = weight, layer.weight_scale
        elif params[0] is not weight:
            params = self._params = weight, layer.weight_scale
        rows = x if is_flat else x.reshape(-1, x.shape[-1])
        if self._least is not None and (compiles or rows.shape[0] >= self._least):
            out = nvfp4_mm(rows, *params, self._alpha, bias, self._name)
        else:
            out = gemmill.fp4_weight_mm(rows, *params, self._alpha, bias, format=self.format)
        return out if is_flat else out.view(*x.shape[:-1], out.shape[-1])


class GemmillNvFp4Linear(_Fp4Linear, MarlinNvFp4LinearKernel):
    """nvfp4 weights, activations of bf16."""

    format = "nvfp4"


class GemmillMxFp4Linear(_Fp4Linear, MarlinMxFp4LinearKernel):
    """mxfp4 weights, activations of bf16."""

    format = "mxfp4"


def _fp4(format: str, n: int, k: int, dtype: torch.dtype) -> Linear:
    return Linear(n=n, k=k, codes=dtype, out_dtype=dtype, format=format)
