"""Every quantisation kernel of the loaded build against the reference on the same device, bit for bit."""

import random
from typing import Any

import pytest
import torch

import gemmill
from families.quant.random_calls import Breakage, empty_call, some_call
from gemmill.compat import lightx2v
from gemmill.families.quant.call import config_of
from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.runtime.checks import check
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Arch


def moved(value: Any, device: torch.device) -> Any:
    """A copy elsewhere with all the memory around a tensor, whatever its strides."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).to(device, copy=True).untyped_storage()
    there = torch.empty(0, dtype=value.dtype, device=device)
    return there.set_(memory, value.storage_offset(), value.shape, value.stride())


def memory_of(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())


def assert_as_the_reference(op: str, arguments: list[Any], device: torch.device) -> None:
    """The same bytes in the memory of every argument, and between and behind its elements."""
    config = config_of(check(BY_NAME[op], of_arguments(BY_NAME[op], arguments)), Arch.SM90A)
    if device.type == "cuda" and config not in {entry.config for entry in gemmill.variants(op=op)}:
        return
    got, wanted = ([moved(value, device) for value in arguments] for _ in range(2))
    getattr(torch.ops.gemmill, op).default(*got)
    by_reference(BY_NAME[op], wanted)
    for found, expected in zip(got, wanted, strict=True):
        if isinstance(found, torch.Tensor):
            assert torch.equal(memory_of(found), memory_of(expected)), (op, arguments)


@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_calls_with_odd_strides_and_without_elements(op: str, device: torch.device) -> None:
    rng = random.Random(op)
    for round_ in range(60):
        leading = rng.choice([(2, 0), (3, 0, 2), (0, 3)])
        arguments = empty_call(op, leading, rng) if round_ % 6 == 0 else some_call(op, rng, Breakage.NONE)
        gated = "and_mul" in op or "gelu" in op  # of zeros, for which the device's exp and tanh cannot matter
        for value in arguments:
            if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16) and not gated:
                value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(round_)))
        assert_as_the_reference(op, arguments, device)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("more", [0, 1, 3, 9])
def test_padding_of_packed_scales_and_of_their_codes(rows: int, more: int, device: torch.device) -> None:
    x = torch.randn((rows, 1280), generator=torch.Generator().manual_seed(rows)).bfloat16()
    codes = torch.full((rows + more, 1296), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, :1280]
    memory = torch.full((256,), -1, dtype=torch.int32)
    step = -(-rows // 4) * 4
    for stride in (1, 0, 7) if rows == 1 else (1,):
        scales = memory.as_strided((rows, 3), (stride, step))
        call = [x, codes, scales, 128, 1e-10, -448.0, 448.0]
        assert_as_the_reference("per_token_group_fp8_quant_packed", call, device)


@pytest.mark.parametrize("codes", [torch.float8_e4m3fn, torch.int8], ids=["e4m3", "s8"])
def test_scales_of_rows_without_elements_and_bounds_of_nan(codes: torch.dtype, device: torch.device) -> None:
    empty, out, scales = torch.empty(5, 0).bfloat16(), torch.empty(5, 0).to(codes), torch.full((5, 1), -1.0)
    azp = torch.full((5, 1), -1, dtype=torch.int32)
    x, wide = torch.randn(5, 256).bfloat16(), torch.zeros(5, 256).to(codes)
    nan = torch.tensor([float("nan")])
    norm = "rms_norm_dynamic_per_token_quant"
    assert_as_the_reference("silu_and_mul_per_token_quant", [out, empty, scales, None], device)
    assert_as_the_reference(norm, [out, empty, empty[0], scales, 1e-6, None, None], device)
    assert_as_the_reference(norm, [out, empty, empty[0], scales, 1e-6, None, empty.clone()], device)
    if codes is torch.int8:
        assert_as_the_reference("dynamic_scaled_int8_quant", [out, empty, scales, None], device)
        assert_as_the_reference("dynamic_scaled_int8_quant", [out, empty, scales, azp], device)
        return
    assert_as_the_reference("dynamic_per_token_scaled_fp8_quant", [out, empty, scales, None], device)
    assert_as_the_reference("dynamic_per_token_scaled_fp8_quant", [wide, x, scales, nan], device)
    assert_as_the_reference(norm, [wide, x, x[0].clone(), scales, 1e-6, nan, None], device)
    zeros = torch.zeros(5, 512).bfloat16()
    groups = torch.full((5, 2), -1.0)
    assert_as_the_reference("silu_and_mul_per_block_quant", [wide, zeros, groups, 128, nan, False], device)


@pytest.mark.needs_cuda
def test_several_scales_of_a_tensor_and_vllms_int8_codes() -> None:
    import gemmill.compat.vllm.ops

    x = torch.randn(7, 256, device="cuda").bfloat16()
    if gemmill.supports("vllm_dynamic_scaled_fp8_quant", dtype="bf16"):
        scales, codes = torch.full((7, 1), -1.0, device="cuda"), torch.empty_like(x, dtype=torch.float8_e4m3fn)
        torch.ops._C.dynamic_scaled_fp8_quant(codes, x, scales)
        wanted_codes, wanted_scale = gemmill.dynamic_scaled_fp8_quant(x)
        assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8)) and scales[0] == wanted_scale
        assert bool((scales[1:] == -1.0).all())
    if gemmill.supports("vllm_per_token_group_quant_int8", dtype="bf16", group_size=64):
        codes, scales = torch.empty_like(x, dtype=torch.int8), torch.empty((7, 4), device="cuda")
        torch.ops._C.per_token_group_quant_int8(x, codes, scales, 64, 1e-10, -128.0, 127.0)
        wanted = x.float().view(7, 4, 64) * torch.reciprocal(scales)[..., None]
        assert torch.equal(codes.view(7, 4, 64), wanted.clamp(-128, 127).trunc().to(torch.int8))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_every_gate_of_16_bits(activation: str, dtype: torch.dtype) -> None:
    """A row of one gate shows all bits of its activation in its scale. So many rows take the table, few do not."""
    name = "act_and_mul_per_block_quant"
    kinds = ("bf16" if dtype is torch.bfloat16 else "f16", "geluerf" if activation == "gelu" else "gelutanh")
    variant = "quant_group_{}_e4m3_{}_g128f32_sym".format(*kinds)
    if not any(entry.name.endswith(variant) for entry in gemmill.variants()):
        pytest.skip("the build lacks the variant")
    gates = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(dtype)
    for up in (1.0, -1024.0, 2.0**-10):
        x = torch.cat(
            [gates[:, None].expand(-1, 128), torch.full((1 << 16, 128), up, dtype=dtype, device="cuda")], dim=1
        )
        for part in (x, x[:: 1 << 6].contiguous()):
            codes = torch.full((len(part), 128), 1.0, device="cuda").to(torch.float8_e4m3fn)
            scales = torch.full((len(part), 1), float("nan"), device="cuda")
            wanted = [codes.clone(), part, scales.clone(), activation, 128, None, False]
            by_reference(BY_NAME[name], wanted)
            getattr(torch.ops.gemmill, name)(codes, part, scales, activation, 128, None, False)
            assert torch.equal(scales.view(torch.int32), wanted[2].view(torch.int32))
            assert torch.equal(codes.view(torch.uint8), wanted[0].view(torch.uint8))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("rows", [257, 8003])
def test_gelu_of_light_x2v_is_torchs(rows: int, dtype: torch.dtype) -> None:
    """Many rows of bf16 take the table, few do not."""
    if not gemmill.supports("scaled_mxfp8_gelu_quant", dtype="bf16" if dtype is torch.bfloat16 else "f16"):
        pytest.skip("the build lacks the variant")
    x = (torch.randn((rows, 2176), device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)) * 2).to(
        dtype
    )
    found = lightx2v.scaled_mxfp8_gelu_quant(x)
    wanted = lightx2v.scaled_mxfp8_quant(torch.nn.functional.gelu(x, approximate="tanh"))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("op", ["scaled_nvfp4_quant", "silu_and_mul_nvfp4_quant"])
def test_by_a_global_scale_that_is_no_number_above_zero_all_scales_are_nan(op: str, value: float) -> None:
    """The call does not wait for the device to refuse it; padding stays zero, and decoded values are NaN."""
    if not (gemmill.supports(op, dtype="bf16") and gemmill.supports("scaled_nvfp4_dequant", dtype="bf16")):
        pytest.skip("the build lacks the variant")
    x, given = torch.randn(5, 96, device="cuda").bfloat16(), torch.tensor([value], device="cuda")
    x[0], x[1, 3] = 0.0, float("nan")
    codes, scales = getattr(gemmill, op)(x, given, False)
    assert bool((scales.view(torch.uint8) == 0x7F).all()) and not codes.any()
    codes, scales = getattr(gemmill, op)(x, given)
    assert int((scales.view(torch.uint8) == 0x7F).sum()) == codes.numel() // 8
    assert bool(gemmill.scaled_nvfp4_dequant(codes, scales, torch.ones(1, device="cuda")).isnan().all())


@pytest.mark.needs_cuda
def test_scales_of_experts_beyond_their_tensor_are_not_written() -> None:
    """Nor are those of an expert whose offset is negative; scales that fit are as ever."""
    if not gemmill.supports("scaled_fp4_experts_quant", dtype="bf16"):
        pytest.skip("the build lacks the variant")
    x, offsets = torch.randn(300, 96, device="cuda").bfloat16(), torch.tensor([0, 130, 140, 300], dtype=torch.int32)
    factors, offsets = torch.full((3,), 300.0, device="cuda"), offsets.cuda()
    codes, scales, _ = gemmill.scaled_fp4_experts_quant(x, factors, offsets)
    memory = torch.full((1024, 8), 0xA5, dtype=torch.uint8, device="cuda")
    starts = torch.tensor([-128, 128, 256, 512], dtype=torch.int32, device="cuda")
    out = torch.empty_like(codes)
    torch.ops.gemmill.scaled_fp4_experts_quant(out, memory[256:640], x, factors, offsets, starts)
    assert torch.equal(out, codes)
    assert torch.equal(memory[384:512], scales.view(torch.uint8)[256:384])
    memory[384:512] = 0xA5
    assert bool((memory == 0xA5).all())


@pytest.mark.needs_cuda
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6", "mxfp8"])
def test_bytes_that_are_no_scale_decode_to_nan(format: str) -> None:
    op = f"scaled_{format}_dequant"
    if not gemmill.supports(op, dtype="bf16"):
        pytest.skip("the build lacks the variant")
    codes = torch.zeros(3, 96, dtype=torch.uint8, device="cuda")
    codes = codes.view(torch.float8_e4m3fn) if format == "mxfp8" else codes
    groups = 12 if format == "nvfp4" else {"mxfp4": 6, "mxfp6": 4, "mxfp8": 3}[format]
    scales = torch.full((3, groups), 100, dtype=torch.uint8, device="cuda")
    scales[1, 1] = 255
    given = (torch.ones(1, device="cuda"),) if format == "nvfp4" else ()
    values = getattr(gemmill, op)(codes, scales, *given, torch.bfloat16, False)
    wanted = torch.zeros(3, groups, dtype=torch.bool, device="cuda")
    wanted[1, 1] = True
    assert torch.equal(values.isnan().unflatten(1, (groups, -1)).all(dim=2), wanted)
    assert torch.equal(values.isnan().unflatten(1, (groups, -1)).any(dim=2), wanted)


LARGE_CALLS = {
    "static_scaled_fp8_quant": lambda x: (gemmill.static_scaled_fp8_quant(x, torch.full((1,), 0.01, device="cuda")),),
    "dynamic_scaled_fp8_quant": gemmill.dynamic_scaled_fp8_quant,
    "dynamic_per_token_scaled_fp8_quant": gemmill.dynamic_per_token_scaled_fp8_quant,
    "per_token_group_fp8_quant": lambda x: gemmill.per_token_group_fp8_quant(x, 128),
    "silu_and_mul_per_block_quant": lambda x: gemmill.silu_and_mul_per_block_quant(torch.cat([x, x], dim=1), 128),
    "rms_norm_dynamic_per_token_quant": lambda x: gemmill.rms_norm_dynamic_per_token_quant(
        x, torch.ones_like(x[0]), 1e-6, torch.float8_e4m3fn
    ),
}


@pytest.mark.needs_cuda
@pytest.mark.parametrize("op", LARGE_CALLS)
def test_more_than_two_to_the_31_elements(op: str) -> None:
    if torch.cuda.get_device_properties(0).total_memory < 64 << 30:
        pytest.skip("needs 64 GiB")
    if not gemmill.supports(op, dtype="bf16", out_dtype="e4m3"):
        pytest.skip("the build lacks the variant")
    x = torch.ones((1 << 17, (1 << 14) + 128), dtype=torch.bfloat16, device="cuda")
    x[-1, ::2] = 2.0
    whole, ends = LARGE_CALLS[op](x), LARGE_CALLS[op](torch.stack([x[0], x[-1]]))
    for found, end in zip(whole, ends, strict=True):
        found, end = (t.reshape(t.shape[0], -1).view(torch.uint8) for t in (found, end))
        assert bool((found[:-1] == end[0]).all()) and bool((found[-1] == end[-1]).all())


BLOCK_CALLS = {
    "scaled_nvfp4_quant": lambda x: gemmill.scaled_nvfp4_quant(x, 300.0),
    "scaled_mxfp4_quant": lambda x: gemmill.scaled_mxfp4_quant(x, "ocp"),
    "scaled_mxfp6_quant": lambda x: gemmill.scaled_mxfp6_quant(x, "ocp"),
    "scaled_mxfp8_quant": lambda x: gemmill.scaled_mxfp8_quant(x, "up"),
    "scaled_mxfp8_modulate_quant": lambda x: gemmill.scaled_mxfp8_modulate_quant(x, x[0] * 0 + 0.5, x[0] * 0 - 1, "up"),
}


@pytest.mark.needs_cuda
@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_rows_of_large_tensors_are_coded_as_those_of_small_ones(op: str) -> None:
    """A thread takes several rows of a large tensor, whose last may be alone."""
    if not gemmill.variants(op=op):
        pytest.skip("the build lacks the variant")
    x = torch.randn((4099, 8224), device="cuda", generator=torch.Generator(device="cuda").manual_seed(0)).bfloat16()
    whole = BLOCK_CALLS[op](x)
    for first, end in ((0, 128), (128, 1024), (4096, 4099)):
        for found, part in zip(whole, BLOCK_CALLS[op](x[first:end]), strict=True):
            assert torch.equal(found[first : first + len(part)].view(torch.uint8), part.view(torch.uint8))


@pytest.mark.needs_cuda
def test_a_call_is_captured_in_a_graph() -> None:
    if not gemmill.supports("dynamic_per_token_scaled_fp8_quant", dtype="bf16"):
        pytest.skip("the build lacks the variant")
    x = torch.ones((16, 512), dtype=torch.bfloat16, device="cuda")
    codes, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty((16, 1), device="cuda")
    torch.ops.gemmill.dynamic_per_token_scaled_fp8_quant(codes, x, scales, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.gemmill.dynamic_per_token_scaled_fp8_quant(codes, x, scales, None)
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((scales * 448 == 2.0).all())


@pytest.mark.needs_cuda
def test_bad_input_leaves_the_context_unharmed() -> None:
    x, out = torch.ones((4, 512), dtype=torch.bfloat16, device="cuda"), torch.zeros((4, 256), device="cuda")
    codes = out.to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="group_size is 16, expected 32 or 64 or 128"):
        torch.ops.gemmill.silu_and_mul_per_block_quant(codes, x, torch.empty((4, 16), device="cuda"), 16)
    torch.cuda.synchronize()
    assert not codes.view(torch.uint8).any()
