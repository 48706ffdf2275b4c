"""Every quantisation kernel of the loaded build against the reference on the same device, bit for bit."""

import pytest
import torch

import gemmill
from gemmill.families import quant
from gemmill.runtime.quant_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME
from gemmill.tune.quant_cases import QuantCase, cases_of, check_case, ops_served


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "quant_entry" not in metafunc.fixturenames:
        return
    match = metafunc.config.getoption("--match")
    entries = gemmill.variants() if torch.cuda.is_available() and not metafunc.config.getoption("--dry-run") else []
    chosen = [entry for entry in entries if entry.family == quant.NAME and match in entry.name]
    metafunc.parametrize("quant_entry", chosen, ids=lambda entry: entry.name)


def test_codes_and_scales(quant_entry) -> None:
    with gemmill.use_variant(quant_entry.name):
        wrong = {
            f"{op}: {case}": text
            for op in ops_served(quant_entry.config)
            for case in cases_of(quant_entry.config)
            if (text := check_case(quant_entry.config, op, case, "cuda"))
        }
    assert not wrong


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
    with pytest.raises(RuntimeError, match="group_size is 32, expected 64 or 128"):
        torch.ops.gemmill.silu_and_mul_per_block_quant(codes, x, torch.empty((4, 8), device="cuda"), 32)
    torch.cuda.synchronize()
    assert not codes.view(torch.uint8).any()


def test_cases_have_names() -> None:
    assert str(QuantCase(rows=3, hidden=64, m_major=True)) == "3 x 64, padding 0, m_major"
