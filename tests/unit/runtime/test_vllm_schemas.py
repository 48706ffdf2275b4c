"""The arguments of vLLM's ops: callers that bind arguments by name, or leave defaults out, find the same here."""

import pytest
import torch

from gemmill.runtime.schemas import BY_NAME

OF_VLLM = """\
cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()
cutlass_scaled_mm_azp(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, Tensor? azp, Tensor? bias) -> ()
dynamic_per_token_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()
dynamic_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale) -> ()
dynamic_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp) -> ()
fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual, Tensor weight, Tensor scale, float epsilon) -> ()
per_token_group_fp8_quant(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()
per_token_group_fp8_quant_packed(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s_packed, int group_size, float eps, float fp8_min, float fp8_max) -> ()
per_token_group_quant_int8(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, float int8_min, float int8_max) -> ()
rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, float epsilon, Tensor? scale_ub, Tensor(c!)? residual) -> ()
rms_norm_per_block_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, float epsilon, Tensor? scale_ub, Tensor(c!)? residual, int group_size, bool is_scale_transposed) -> ()
rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()
silu_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, int group_size, Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()
silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale) -> ()
static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()
static_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor scale, Tensor? azp) -> ()
"""
"""Registered by vLLM 0.33.0's `_C_stable_libtorch.abi3.so`, each as torch prints it."""
OURS_TOO = "cutlass_scaled_fp4_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()"
"""One that is the same under both names."""
BLOCK_SCALED = """\
mxfp4_experts_quant(Tensor(a!) output, Tensor(b!) output_scale, Tensor input, Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts, int n_experts) -> ()
scaled_fp4_experts_quant(Tensor(a!) output, Tensor(b!) output_scale, Tensor input, Tensor input_global_scale, Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts) -> ()
silu_and_mul_mxfp4_experts_quant(Tensor(a!) output, Tensor(b!) output_scale, Tensor input, Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts, int n_experts) -> ()
silu_and_mul_scaled_fp4_experts_quant(Tensor(a!) output, Tensor(b!) output_scale, Tensor input, Tensor input_global_scale, Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts) -> ()
"""
"""Of block-scaled formats, where our own op may have an argument more. `scaled_fp4_quant` is another shape of `scaled_nvfp4_quant`, and
`silu_and_mul_nvfp4_quant` may have plain scales."""
OTHERWISE = {"scaled_nvfp4_quant", "silu_and_mul_nvfp4_quant"}
SCHEMAS = {line.partition("(")[0]: line for line in OF_VLLM.splitlines()}
OF_BLOCKS = {line.partition("(")[0]: line for line in BLOCK_SCALED.splitlines()}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("prefix", ["", "vllm_"])
def test_arguments_are_vllms(prefix: str, name: str) -> None:
    ours = torch._C.parse_schema(BY_NAME[prefix + name].schema)
    assert str(ours).removeprefix(prefix) == str(torch._C.parse_schema(SCHEMAS[name]))


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_arguments_of_block_scaled_ops_are_vllms(name: str) -> None:
    ours = torch._C.parse_schema(BY_NAME[f"vllm_{name}"].schema)
    assert str(ours).removeprefix("vllm_") == str(torch._C.parse_schema(OF_BLOCKS[name]))


def test_each_of_vllms_ops_is_there() -> None:
    known = {*SCHEMAS, *OF_BLOCKS, *OTHERWISE}
    assert {name.removeprefix("vllm_") for name in BY_NAME if name.startswith("vllm_")} == known


def test_what_is_the_same_has_one_name() -> None:
    ours = BY_NAME[OURS_TOO.partition("(")[0]].schema
    assert str(torch._C.parse_schema(ours)) == str(torch._C.parse_schema(OURS_TOO))
