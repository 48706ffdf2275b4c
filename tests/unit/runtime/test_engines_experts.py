"""Experts with scales in blocks, and SGLang's 4-bit layers: which calls of the engines come to gemmill, and their results."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from engines import SGLANG, VLLM, vllm_modules
from gemmill.compat import deep_gemm, linear
from gemmill.compat.sglang import plugin as sglang_plugin
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families import blockscaled, grouped_mm
from gemmill.quantize import quantize_weight
from gemmill.registry import REGISTRY
from gemmill.runtime import holding, ops
from gemmill.space.selections import select

E4M3 = torch.float8_e4m3fn
E, N, K = 3, 96, 256
ROWS = (3, 0, 2)
"""Of each expert."""
ALIGNMENT = 8
"""Of the stand-in of vLLM: where rows of an expert begin."""
BEGINS = (0, 8, 8)


@pytest.fixture
def served(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of the smoke selection's grouped GEMMs and of its 4-bit ones."""
    configs = [
        c for name in (grouped_mm.NAME, blockscaled.NAME) for c in REGISTRY.configs_of(name, select("smoke").configs)
    ]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()


@pytest.fixture
def vllm(monkeypatch) -> ModuleType:
    """vLLM's module of DeepGEMM, with another of vLLM's that imports a function of it, as its experts do."""
    modules = vllm_modules()
    blocks = modules["vllm.utils.deep_gemm"]
    modules["vllm.experts"] = ModuleType("vllm.experts")
    modules["vllm.experts"].m_grouped_fp8_gemm_nt_contiguous = blocks.m_grouped_fp8_gemm_nt_contiguous
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gemmill.compat.vllm.kernels", raising=False)
    monkeypatch.setattr(linear, "_complained", set())
    monkeypatch.delenv("GEMMILL_VLLM", raising=False)
    for _ in range(2):
        vllm_plugin.register()
    yield blocks
    sys.modules.pop("gemmill.compat.vllm.kernels", None)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def weights() -> tuple[Tensor, Tensor]:
    return drawn(E, N, K).to(E4M3), scales(E, 1, K // 128)


def product(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """Of one expert, a [M, K] and b [N, K]."""
    return (a.float() * a_scales.repeat_interleave(128, 1)) @ (b.float() * b_scales.repeat_interleave(128, 1)).t()


def check(out: Tensor, a: Tensor, a_scales: Tensor, begins: tuple[int, ...]) -> None:
    """Rows of the experts are right, the others are as they were."""
    b, b_scales = weights()
    left = torch.ones(len(out), dtype=torch.bool)
    for expert, (first, count) in enumerate(zip(begins, ROWS, strict=True)):
        rows = slice(first, first + count)
        wanted = product(a[rows], a_scales[rows], b[expert], b_scales[expert])
        assert (out[rows].float() - wanted).norm() <= 0.005 * wanted.norm()
        left[rows] = False
    assert bool(out[left].isnan().all()) and bool(left.any())


@pytest.mark.parametrize("by_ends", [True, False])
def test_vllms_contiguous_experts(vllm, served, caplog, by_ends: bool) -> None:
    """Rows said by expert, or by where those of each end, as vLLM's experts do on Hopper; gaps are unchanged."""
    caplog.set_level("INFO", logger="gemmill")
    for call in VLLM["modules"]["vllm.model_executor.layers.fused_moe.experts.deep_gemm_moe"][
        "m_grouped_fp8_gemm_nt_contiguous"
    ]["calls"]:
        assert len(call) == 5 and call[-1] == "**", "operands, weights, result, layout, and what is named"
    gemm = sys.modules["vllm.experts"].m_grouped_fp8_gemm_nt_contiguous
    a, a_scales = drawn(24, K).to(E4M3), scales(24, 2)
    if by_ends:
        layout = torch.tensor([first + count for first, count in zip(BEGINS, ROWS, strict=True)], dtype=torch.int32)
        named = {"use_psum_layout": True}
    else:
        layout, named = torch.full((24,), -1, dtype=torch.int32), {}
        layout[0:3], layout[8:10], layout[20] = 0, 2, 2**30
    out = torch.full((24, N), torch.nan, dtype=torch.bfloat16)
    assert gemm((a, a_scales), weights(), out, layout, **named) is None
    check(out, a, a_scales, BEGINS)
    (message,) = caplog.messages
    assert f"takes a layer of 3 experts of N x K = {N} x {K}, float8_e4m3fn to bfloat16, scales of blocks" in message
    assert gemm((a, a_scales), weights(), out, layout, recipe_a=(1, 32), **named) == "vLLM's"
    assert gemm((a, a_scales.int()), weights(), out, layout, **named) == "vLLM's"
    assert gemm((a, a_scales), weights(), out.float(), layout, **named) == "vLLM's"
    assert "a call failed" not in caplog.text
    linear.forget()
    sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT = True
    assert gemm((a, a_scales), weights(), out, layout, **named) is None and holding.holds_here()


def masked(gemm: Any) -> None:
    a, a_scales = drawn(E, 8, K).to(E4M3), scales(E, 8, 2)
    out = torch.full((E, 8, N), torch.nan, dtype=torch.bfloat16)
    assert gemm((a, a_scales), weights(), out, torch.tensor(ROWS, dtype=torch.int32), 2) is None
    check(out.flatten(0, 1), a.flatten(0, 1), a_scales.flatten(0, 1), (0, 8, 16))


def test_vllms_masked_experts(vllm, served) -> None:
    calls = VLLM["modules"]["vllm.model_executor.layers.fused_moe.experts.batched_deep_gemm_moe"]
    assert {len(call) for call in calls["fp8_m_grouped_gemm_nt_masked"]["calls"]} == {5}
    masked(vllm.fp8_m_grouped_gemm_nt_masked)
    none = torch.zeros(E, dtype=torch.int32)
    given = (drawn(E, 8, K), scales(E, 8, 2)), weights(), torch.empty(E, 8, N), none, 2
    assert vllm.fp8_m_grouped_gemm_nt_masked(*given) == "vLLM's"


def test_vllm_goes_on_where_deep_gemms_module_is_another(vllm, caplog, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.utils.deep_gemm", ModuleType("vllm.utils.deep_gemm"))
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith(
        "vLLM goes on with its own kernels: gemmill cannot serve here (module 'vllm.utils.deep_gemm'"
    )


def own(*given: object, **named: object) -> str:
    return "SGLang's"


def test_sglangs_experts_by_deep_gemms_names(served) -> None:
    contiguous = sglang_plugin.around_contiguous_experts
    a, a_scales = drawn(24, K).to(E4M3), scales(24, 2)
    layout = torch.full((24,), -1, dtype=torch.int32)
    layout[0:3], layout[8:10] = 0, 2
    out = torch.full((24, N), torch.nan, dtype=torch.bfloat16)
    assert contiguous(own, (a, a_scales), weights(), out, layout) is None
    check(out, a, a_scales, BEGINS)
    assert contiguous(own, (a, a_scales), weights(), out, layout, recipe_b=(1, 32)) == "SGLang's"
    assert contiguous(own, (a, a_scales), weights(), out.float(), layout) == "SGLang's"
    masked(lambda *given: sglang_plugin.around_masked_experts(own, *given))
    rest = out, torch.tensor(ROWS), 2
    assert sglang_plugin.around_masked_experts(own, (a, a_scales), weights(), *rest, overlap_args=1) == "SGLang's"


def test_sglangs_experts_by_cutlasss_name(served, caplog) -> None:
    """With sgl_kernel's arguments, in the places in which SGLang gives them."""
    module = SGLANG["modules"]["sglang.srt.layers.moe.cutlass_moe"]["fp8_blockwise_scaled_grouped_mm"]
    for names in module["calls"]:
        assert len(names) == 18 and names[7] in ("w1_q", "w2_q") and names[9] in ("w1_scale", "w2_scale")
        assert names[15].startswith("problem_sizes") and names[16:] == ["expert_offsets[:-1]", "workspace"]
    a, a_scales = drawn(6, K).to(E4M3), scales(6, 2)
    out = torch.full((6, N), torch.nan, dtype=torch.bfloat16)
    sizes = torch.tensor([[count, N, K] for count in ROWS], dtype=torch.int32)
    offsets = torch.tensor([0, 3, 3], dtype=torch.int32)
    (b, b_scales), none = weights(), [None] * 5
    given = [out, *none, a, b.transpose(1, 2), a_scales, b_scales.transpose(1, 2), *none, sizes, offsets, None]
    assert len(given) == 18
    assert sglang_plugin.around_cutlass_experts(own, *given) is None
    check(out, a, a_scales, (0, 3, 3))
    given[7] = b.transpose(1, 2).contiguous()
    assert sglang_plugin.around_cutlass_experts(own, *given) == "SGLang's" and "a call failed" not in caplog.text


def fp4_layer(n: int = 72, dtype: torch.dtype = torch.bfloat16, group: int = 16) -> SimpleNamespace:
    made = quantize_weight(drawn(n, K), "nvfp4")
    return SimpleNamespace(
        weight=torch.nn.Parameter(made.codes, requires_grad=False),
        weight_scale=torch.nn.Parameter(made.scales.view(E4M3), requires_grad=False),
        weight_global_scale=torch.nn.Parameter(1 / made.global_scale, requires_grad=False),
        params_dtype=dtype,
        quant_config=SimpleNamespace(group_size=group),
        made=made,
    )


def test_sglangs_4_bit_layers(served, monkeypatch) -> None:
    """Packed where SGLang would pack for Marlin, then multiplied in Marlin's place; Marlin's own weights stay with Marlin."""
    prepare, gemm = sglang_plugin.around_fp4_preparation, sglang_plugin.around_fp4_linear
    layer, x = fp4_layer(), drawn(2, 3, K).bfloat16()
    assert prepare(own, layer) is None and layer.weight.dtype == torch.uint8
    given = layer.weight, layer.weight_scale, layer.weight_global_scale, layer.workspace
    out = gemm(own, x, *given, 72, K, bias=torch.ones(72, dtype=torch.bfloat16))
    wanted = x.float() @ layer.made.values().t() + 1
    assert out.shape == (2, 3, 72) and (out.float() - wanted).norm() <= 0.005 * wanted.norm()
    of_marlin = torch.zeros(16, 144, dtype=torch.int32), *given[1:]
    assert gemm(own, x, *of_marlin, 72, K) == "SGLang's"
    for other in (fp4_layer(dtype=torch.float32), fp4_layer(group=32)):
        kept = other.weight
        assert prepare(own, other) == "SGLang's" and other.weight is kept
    monkeypatch.setattr(sglang_plugin, "packed_fp4", lambda *given: None)
    assert prepare(own, fp4_layer()) == "SGLang's"


def test_rows_by_ends_begin_at_multiples() -> None:
    """As DeepGEMM lays them, by its default alignment."""
    a, a_scales, (b, b_scales) = drawn(260, K).to(E4M3), scales(260, 2), weights()
    out = torch.full((260, N), torch.nan, dtype=torch.bfloat16)
    ends = torch.tensor([128, 129, 258], dtype=torch.int32)
    laid = {"use_psum_layout": True, "ensure_zero_padding": False}
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, a_scales), (b, b_scales), out, ends, **laid)
    written = (~out.isnan().any(1)).nonzero().flatten().tolist()
    assert written == [*range(129), 256, 257]
    wanted = product(a[128:129], a_scales[128:129], b[1], b_scales[1])
    assert (out[128].float() - wanted).norm() <= 0.005 * wanted.norm()


def test_the_plugins_import_without_their_engines() -> None:
    for name in ("experts", "vllm.blocks", "sglang.plugin"):
        importlib.import_module(f"gemmill.compat.{name}")


@pytest.mark.parametrize("fails", ["in the call", ""])
def test_a_call_of_experts_that_fails_is_the_engines(vllm, served, monkeypatch, caplog, fails: str) -> None:
    """As are those that follow, of both engines."""
    a, layout = (drawn(24, K).to(E4M3), scales(24, 2)), torch.zeros(24, dtype=torch.int32)
    out = torch.full((24, N), torch.nan, dtype=torch.bfloat16)

    def failing(*given: Any, **named: Any) -> None:
        raise RuntimeError("scales are bf16:\npass f32")

    if fails:
        monkeypatch.setattr(deep_gemm, "m_grouped_fp8_gemm_nt_contiguous", failing)
    gemm, own = sys.modules["vllm.experts"].m_grouped_fp8_gemm_nt_contiguous, lambda *given, **named: "SGLang's"
    for _ in range(2):
        assert gemm(a, weights(), out, layout) == ("vLLM's" if fails else None)
    assert sglang_plugin.around_contiguous_experts(own, a, weights(), out, layout) == ("SGLang's" if fails else None)
    assert caplog.messages == fails.count("call") * [
        f"a layer of 3 experts of N x K = {N} x {K}, float8_e4m3fn to bfloat16, scales of blocks of 128 stays with the engine: a call "
        "failed (scales are bf16: pass f32)"
    ]


@pytest.mark.parametrize("meta", [True, False])
def test_sglangs_4_bit_layer_whose_first_call_fails(served, monkeypatch, caplog, meta: bool) -> None:
    """Is prepared by SGLang, of the weights that it had."""
    made, right = quantize_weight(drawn(72, 256), "nvfp4"), gemmill.fp4_weight_mm

    def failing(x: Tensor, *operands: Any, **named: Any) -> Tensor:
        if x.is_meta == meta:
            raise RuntimeError("base is bf16:\npass f32")
        return right(x, *operands, **named)

    monkeypatch.setattr(gemmill, "fp4_weight_mm", failing)
    parts = {"weight": made.codes, "weight_scale": made.scales, "weight_global_scale": 1 / made.global_scale}
    layer = SimpleNamespace(params_dtype=torch.bfloat16, **parts)
    assert sglang_plugin.around_fp4_preparation(lambda layer: "SGLang's", layer) == "SGLang's"
    assert {name: getattr(layer, name) for name in parts} == parts
    (message,) = caplog.messages
    assert "stays with the engine: its first call " in message and message.endswith("failed (base is bf16: pass f32)")
