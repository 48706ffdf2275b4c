"""SGLang's plugin: the entry point `gemmill` of `sglang.srt.plugins`, which SGLang calls in each of its processes.

It puts itself around SGLang's GEMMs for FP8 per token and channel, FP8 in blocks, INT8, nvfp4 weights, and experts of FP8 in
blocks, of release 0.5.23. With GEMMILL_FP4_EXPERTS=1 it takes experts of nvfp4 too. A call that a build has a variant for comes to
gemmill, others to SGLang's own. GEMMILL_SGLANG=0 leaves SGLang as it is.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

import gemmill
from gemmill import settings
from gemmill.compat import deep_gemm, invariance
from gemmill.compat.deep_gemm.grouped import by_segments
from gemmill.compat.experts import Scaled, experts_called
from gemmill.compat.linear import BLOCKS, FINE_BLOCK, Linear, called, guarded, packed_fp4, refusal, row_of, serves
from gemmill.compat.sglang import experts
from gemmill.runtime import served

Gemm = Callable[..., torch.Tensor]
Layer = Any
"""SGLang's linear layer, with its parameters."""
Recipe = tuple[int, int] | None
"""DeepGEMM's name for another size of blocks."""
_FP4_GROUP = 16


def register() -> None:
    """Put the hooks there; a second call changes nothing. Raises nothing: SGLang goes on without them."""
    if settings.serves("SGLang"):
        guarded("SGLang", _register)


def _register() -> None:
    hooks = import_module("sglang.srt.plugins.hook_registry")
    for target, hook in HOOKS.items():
        known = [other for _, other, *_ in getattr(hooks.HookRegistry, "_hooks", {}).get(target, ())]
        if any(other.__name__ == hook.__name__ and other is not hook for other in known):
            raise RuntimeError("another gemmill has registered its hooks already: uninstall one of the two")
        if hook not in known:
            hooks.HookRegistry.register(target, hook, hooks.HookType.AROUND)


def around_scaled_mm(
    original: Gemm,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """mat_a [M, K] and mat_b [K, N], both e4m3 or s8, with scales per token or one, and per channel or one; [M, N]."""

    def ours() -> torch.Tensor:
        return gemmill.cutlass_scaled_mm(mat_a, mat_b, scales_a, row_of(scales_b), out_dtype, bias)

    def theirs() -> torch.Tensor:
        return original(mat_a, mat_b, scales_a, scales_b, out_dtype=out_dtype, bias=bias)

    shape, codes = mat_b.shape, mat_a.dtype

    def layer() -> Linear | None:
        return Linear(n=shape[1], k=shape[0], codes=codes, out_dtype=out_dtype) if _may_serve() else None

    if mat_b.stride(0) != 1:
        return theirs()
    return called(("scaled_mm", shape, codes, out_dtype), layer, "fp8_scaled_mm", ours, theirs)


def around_block_scaled_mm(
    original: Gemm,
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: Sequence[int],
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """A [M, K] and B [N, K] of e4m3, with scales [M, K/s] and [N/s, K/s] of float32, s = 128 or 32; [M, N]."""

    def ours() -> torch.Tensor:
        return gemmill.cutlass_scaled_mm(A, B.t(), As, Bs.t(), output_dtype, None)

    def theirs() -> torch.Tensor:
        return original(A, B, As, Bs, block_size, output_dtype=output_dtype)

    shape, codes, scales = B.shape, A.dtype, (As.dtype, Bs.dtype)

    def layer() -> Linear | None:
        is_known = any(list(block_size) == [size, size] for size in BLOCKS)
        if not is_known or scales != (torch.float32, torch.float32) or not _may_serve():
            return None
        return Linear(n=shape[0], k=shape[1], codes=codes, out_dtype=output_dtype, blocks=block_size[0])

    key = ("block_scaled_mm", shape, codes, output_dtype, scales, *block_size)
    return called(key, layer, "w8a8_block_fp8_matmul_deepgemm", ours, theirs)


def around_triton_block_scaled_mm(
    original: Gemm,
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: Sequence[int],
    output_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """The same in blocks of 32 x 32, which SGLang's Triton kernel takes where DeepGEMM's does not; other blocks are Triton's."""
    if list(block_size) != [FINE_BLOCK, FINE_BLOCK]:
        return original(A, B, As, Bs, block_size, output_dtype=output_dtype)
    return around_block_scaled_mm(original, A, B, As, Bs, block_size, output_dtype)


def around_fp4_preparation(original: Callable[[Layer], None], layer: Layer) -> None:
    """Pack nvfp4 weight [N, K/2] and weight_scale [N, K/16] for gemmill's kernel where a variant fits, else as SGLang's Marlin."""
    dtype = getattr(layer, "params_dtype", getattr(layer, "orig_dtype", torch.float32))
    linear = Linear(n=layer.weight.shape[0], k=2 * layer.weight.shape[1], codes=dtype, out_dtype=dtype, format="nvfp4")
    packed = None
    is_nvfp4 = getattr(getattr(layer, "quant_config", None), "group_size", _FP4_GROUP) == _FP4_GROUP
    if is_nvfp4 and _may_serve() and not refusal(linear):
        packed = packed_fp4("nvfp4", layer.weight.data, layer.weight_scale.data)
    if packed is None:
        return original(layer)
    of_all = layer.weight_global_scale.data.float().reshape(1)
    x = torch.zeros((1, linear.k), dtype=dtype, device=of_all.device)
    if not serves(linear, "fp4_weight_mm", layer, _fp4_mm, x, *packed, of_all, getattr(layer, "bias", None)):
        return original(layer)
    for name, made in zip(("weight", "weight_scale", "weight_global_scale"), (*packed, of_all), strict=True):
        setattr(layer, name, torch.nn.Parameter(made, requires_grad=False))
    layer.workspace = of_all.new_empty(0)  # of Marlin, which a call gives along
    return None


def around_fp4_linear(
    original: Gemm,
    input: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    workspace: torch.Tensor,
    size_n: int,
    size_k: int,
    bias: torch.Tensor | None = None,
    use_fp32_reduce: bool = True,
) -> torch.Tensor:
    """input [..., K] and a weight as the function above left it: Marlin's is of int32; [..., N]."""
    if weight.dtype != torch.uint8:
        of_marlin = (weight, weight_scale, weight_global_scale, workspace)
        return original(input, *of_marlin, size_n, size_k, bias=bias, use_fp32_reduce=use_fp32_reduce)
    out = _fp4_mm(input.reshape(-1, size_k), weight, weight_scale, weight_global_scale, bias)
    return out.view(*input.shape[:-1], size_n)


def around_contiguous_experts(
    original: Callable[..., None],
    lhs: Scaled,
    rhs: Scaled,
    out: torch.Tensor,
    m_indices: torch.Tensor,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
) -> None:
    """lhs [M, K] and rhs [E, N, K] as DeepGEMM takes them; m_indices int32 [M] says whose each row of out [M, N] is."""

    def ours() -> None:
        return deep_gemm.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices, ensure_zero_padding=False)

    def theirs() -> None:
        return original(lhs, rhs, out, m_indices, recipe_a=recipe_a, recipe_b=recipe_b)

    if recipe_a or recipe_b:
        return theirs()
    return experts_called(lhs, rhs, out, "grouped_gemm_nt_f8f8bf16_contig", ours, theirs, _stays)


def around_masked_experts(
    original: Callable[..., Any],
    lhs: Scaled,
    rhs: Scaled,
    out: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    overlap_args: Any = None,
    max_block_n: int = 256,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
) -> Any:
    """lhs [E, rows, K] and rhs [E, N, K] as DeepGEMM takes them; of each expert the first masked_m rows, int32 [E].
    Calls that overlap with others stay with SGLang's own.
    """

    def ours() -> Any:
        return deep_gemm.m_grouped_fp8_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)

    def theirs() -> Any:
        more = {"overlap_args": overlap_args, "max_block_n": max_block_n, "recipe_a": recipe_a, "recipe_b": recipe_b}
        return original(lhs, rhs, out, masked_m, expected_m, **more)

    if overlap_args or recipe_a or recipe_b:
        return theirs()
    return experts_called(lhs, rhs, out, "grouped_gemm_nt_f8f8bf16_masked", ours, theirs, _stays)


def around_cutlass_experts(original: Callable[..., None], output: torch.Tensor, *given: Any) -> None:
    """Rows [M, K] sorted by experts times [E, K, N] of contiguous columns, scales [M, K/128] and [E, K/128, N/128]; output [M, N].

    Of the others of sgl_kernel's arguments problem_sizes int32 [E, 3] is read, rows first, and expert_offsets int32 [E].
    """
    a, b, a_scales, b_scales = given[5:9]
    problem_sizes, expert_offsets = given[14:16]
    weights = b.transpose(1, 2), b_scales.transpose(1, 2)

    def ours() -> None:
        ends = expert_offsets + problem_sizes[:, 0]
        return by_segments(output, (a, a_scales), weights, expert_offsets, ends)

    def theirs() -> None:
        return original(output, *given)

    if weights[0].stride(2) != 1:
        return theirs()
    return experts_called((a, a_scales), weights, output, "fp8_blockwise_scaled_grouped_mm", ours, theirs, _stays)


_GEMMS = "sglang.srt.layers.quantization"
_DEEP_GEMM = "sglang.srt.layers.deep_gemm_wrapper.entrypoint"
HOOKS: dict[str, Callable[..., Any]] = {
    f"{_GEMMS}.fp8_utils.fp8_scaled_mm": around_scaled_mm,
    f"{_GEMMS}.w8a8_int8.int8_scaled_mm": around_scaled_mm,
    "sglang.kernels.ops.gemm.fp8_kernel.w8a8_block_fp8_matmul_deepgemm": around_block_scaled_mm,
    "sglang.kernels.ops.gemm.fp8_kernel.w8a8_block_fp8_matmul_triton": around_triton_block_scaled_mm,
    f"{_GEMMS}.marlin_utils_fp4.prepare_nvfp4_layer_for_marlin": around_fp4_preparation,
    f"{_GEMMS}.marlin_utils_fp4.apply_fp4_marlin_linear": around_fp4_linear,
    f"{_GEMMS}.marlin_utils_fp4.prepare_moe_nvfp4_layer_for_marlin": experts.around_fp4_experts_preparation,
    "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe.fused_marlin_moe": experts.around_marlin_experts,
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts": experts.around_triton_experts,
    f"{_DEEP_GEMM}.grouped_gemm_nt_f8f8bf16_contig": around_contiguous_experts,
    f"{_DEEP_GEMM}.grouped_gemm_nt_f8f8bf16_masked": around_masked_experts,
    "sglang.srt.layers.moe.cutlass_moe.fp8_blockwise_scaled_grouped_mm": around_cutlass_experts,
}
"""The hooks, by the function that each wraps."""


def _may_serve() -> bool:
    """Whether SGLang does not require deterministic inference, or the build can hold one order, which this then
    requests.
    """
    if (why := invariance.of_sglang()) is not None:
        served.left("layer of SGLang's", why)
    return why is None


def _stays() -> bool:
    return not _may_serve()


def _fp4_mm(
    rows: torch.Tensor, blocks: torch.Tensor, base: torch.Tensor, alpha: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return gemmill.fp4_weight_mm(rows, blocks, base, alpha, bias, format="nvfp4")
