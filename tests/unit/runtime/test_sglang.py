"""SGLang's plugin: its hooks, the calls that they take, and deterministic inference."""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import gemmill
from engines import SGLANG, sglang_modules
from gemmill.compat import fused_experts, linear
from gemmill.compat.sglang import experts as sglang_experts
from gemmill.compat.sglang import plugin as sglang_plugin
from gemmill.runtime import holding, ops
from gemmill.runtime.choosing import Trust

E4M3 = torch.float8_e4m3fn
BY_NAME = (sglang_experts.around_marlin_experts, sglang_experts.around_triton_experts)
"""Hooks that read a few of many arguments, which SGLang gives by name."""


@pytest.fixture
def sglang(monkeypatch) -> Any:
    """A registry of hooks."""
    modules = sglang_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(linear, "_complained", set())
    linear.forget()
    monkeypatch.delenv("GEMMILL_SGLANG", raising=False)
    return modules["sglang.srt.plugins.hook_registry"].HookRegistry


def test_sglangs_gemms_are_hooked_once(sglang, monkeypatch, caplog) -> None:
    monkeypatch.setenv("GEMMILL_SGLANG", "0")
    sglang_plugin.register()
    assert sglang._hooks == {}
    monkeypatch.delenv("GEMMILL_SGLANG")
    for _ in range(2):
        sglang_plugin.register()
    assert {target: [kind for kind, *_ in hooks] for target, hooks in sglang._hooks.items()} == {
        target: ["around"] for target in sglang_plugin.HOOKS
    }
    for target in sglang_plugin.HOOKS:
        module, _, name = target.rpartition(".")
        assert name in SGLANG["modules"][module], "the name was there when it was recorded"
    other = lambda original: None  # noqa: E731
    other.__name__ = "around_scaled_mm"
    sglang._hooks[next(iter(sglang_plugin.HOOKS))] = [("around", other, None)]
    sglang_plugin.register()
    assert caplog.messages == [
        "SGLang goes on with its own kernels: gemmill cannot serve here (another gemmill has registered its hooks already: "
        "uninstall one of the two)"
    ]


def test_hooks_take_what_sglangs_gemms_take() -> None:
    modules = SGLANG["modules"]
    for hook, module, name in (
        (sglang_plugin.around_scaled_mm, "sglang.kernels.ops.gemm", "fp8_scaled_mm"),
        (sglang_plugin.around_block_scaled_mm, "sglang.kernels.ops.gemm.fp8_kernel", "w8a8_block_fp8_matmul_deepgemm"),
        *(
            (hook, *target.rsplit(".", 1))
            for target, hook in sglang_plugin.HOOKS.items()
            if "parameters" in modules[target.rpartition(".")[0]][target.rpartition(".")[2]]
        ),
    ):
        theirs = [given[0] for given in modules[module][name]["parameters"]]
        ours = inspect.signature(hook).parameters.values()
        if hook not in BY_NAME:
            assert [parameter.name for parameter in ours] == ["original", *theirs]


def test_a_call_comes_to_gemmill_or_to_sglangs_own(sglang, served, monkeypatch) -> None:
    a, b = torch.ones(5, 32).to(E4M3), torch.ones(48, 32).to(E4M3).t()
    scales = torch.ones(5, 1), torch.full((48, 1), 2.0)

    def own(*given: object, out_dtype: object, bias: object) -> str:
        assert len(given) == 4
        return "SGLang's"

    out = sglang_plugin.around_scaled_mm(own, a, b, *scales, out_dtype=torch.bfloat16)
    assert torch.equal(out, torch.full((5, 48), 64.0, dtype=torch.bfloat16))
    assert sglang_plugin.around_scaled_mm(own, a, b.contiguous(), *scales, torch.bfloat16) == "SGLang's"
    assert sglang_plugin.around_scaled_mm(own, a, b, *scales, torch.float32) == "SGLang's"
    blocks = (torch.ones(4, 256).to(E4M3), torch.ones(128, 256).to(E4M3), torch.ones(4, 2), torch.ones(1, 2))
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    out = sglang_plugin.around_block_scaled_mm(None, *blocks, [128, 128], output_dtype=torch.bfloat16)
    assert torch.equal(out, torch.full((4, 128), 256.0, dtype=torch.bfloat16))

    def own_blocks(*given: object, output_dtype: object) -> str:
        return "SGLang's"

    assert sglang_plugin.around_block_scaled_mm(own_blocks, *blocks, [64, 64], torch.bfloat16) == "SGLang's"
    fine = (*blocks[:2], torch.ones(4, 8), torch.full((4, 8), 0.5))
    by_triton = sglang_plugin.around_triton_block_scaled_mm
    for around in (sglang_plugin.around_block_scaled_mm, by_triton):
        out = around(None, *fine, [32, 32], output_dtype=torch.bfloat16)
        assert torch.equal(out, torch.full((4, 128), 128.0, dtype=torch.bfloat16))
    assert by_triton(own_blocks, *blocks, [128, 128], torch.bfloat16) == "SGLang's", "Triton is asked for on purpose"


def test_sglangs_deterministic_inference_is_gemmills_contract(served, monkeypatch) -> None:
    """By the arguments that the server was started with."""
    layer = linear.Linear(n=4096, k=4096, codes=E4M3, out_dtype=torch.bfloat16)
    for is_set in (False, True):
        module = ModuleType("sglang.srt.server_args")
        module.get_global_server_args = lambda is_set=is_set: SimpleNamespace(enable_deterministic_inference=is_set)
        monkeypatch.setitem(sys.modules, "sglang.srt.server_args", module)
        assert sglang_plugin._may_serve() and holding.holds_here() is is_set
    assert ops.explain(*layer.call(16)).held is not None
    holding.hold_everywhere(False)
    old = holding.Holding(object(), lambda *_: (-1, Trust.MODEL), served.build_id)
    assert not sglang_plugin._may_serve() and not holding.holds_here()
    del old


def fine_experts(tokens: int, **more: Any) -> dict[str, Any]:
    """A call of SGLang's layer of four experts with blocks of 32 x 32, top 2: small integers, scales that are powers of two."""
    experts, hidden, inner = 4, 64, 96
    generator = torch.Generator().manual_seed(tokens)

    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=generator).float()

    def scales(*shape: int) -> torch.Tensor:
        return torch.exp2(torch.randint(-3, 0, shape, generator=generator).float())

    config = {"activation": "silu", "is_gated": True, "apply_router_weight_on_input": False, "no_combine": False}
    numbers = dict.fromkeys(("routed_scaling_factor", "gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit"))
    of_config = {name: more.pop(name) for name in list(more) if name in config | numbers}
    ids = torch.randint(0, experts, (tokens, 2), generator=generator, dtype=torch.int32)
    return {
        "hidden_states": whole(tokens, hidden).bfloat16(),
        "w1": whole(experts, 2 * inner, hidden).to(E4M3),
        "w2": whole(experts, hidden, inner).to(E4M3),
        "topk_output": (torch.rand(tokens, 2, generator=generator), ids, None),
        "moe_runner_config": SimpleNamespace(**(config | numbers | of_config)),
        "use_fp8_w8a8": True,
        "w1_scale": scales(experts, 2 * inner // 32, hidden // 32),
        "w2_scale": scales(experts, hidden // 32, inner // 32),
        "block_shape": [32, 32],
        **dict.fromkeys(("b1", "b2", "a1_scale", "a2_scale", "a1_q")),
    } | more


def test_sglangs_experts_in_blocks_of_32_are_gemmills_whole(sglang, served, monkeypatch) -> None:
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    monkeypatch.setattr(sglang_experts.invariance, "of_sglang", lambda: None)
    hook = sglang_experts.around_triton_experts
    for tokens, factor in ((3, None), (3, 2.5), (200, 1.0)):
        given = fine_experts(tokens, routed_scaling_factor=factor)
        weights, ids, _ = given["topk_output"]
        layer = (given[name] for name in ("w1", "w2", "w1_scale", "w2_scale"))
        wanted = gemmill.fused_experts(given["hidden_states"], *layer, ids, weights * (factor or 1.0), "silu")
        assert wanted.abs().max() > 0
        assert torch.equal(hook(None, **given), wanted)
    assert [kind["by"] for kind in gemmill.serving_report()["served"]] == ["fused_experts"]


def test_sglangs_experts_are_gemmills_for_every_number_of_tokens_under_its_flag(sglang, served, monkeypatch) -> None:
    """The first call requests the contract, before it is known whether gemmill takes so many tokens."""
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    monkeypatch.setattr(fused_experts, "goes_apart", lambda *_: False)
    monkeypatch.setattr(gemmill, "fused_experts", lambda x, *_, **named: named["out"].fill_(7))
    monkeypatch.setattr(sglang_experts.invariance, "sglang_asks", lambda: False)
    hook = sglang_experts.around_triton_experts
    assert hook(lambda **_: "Triton's", **fine_experts(300)) == "Triton's"
    monkeypatch.setattr(sglang_experts.invariance, "sglang_asks", lambda: True)
    for tokens in (300, 3):
        assert hook(None, **fine_experts(tokens)).eq(7).all()
    assert holding.holds_everywhere()


def test_sglangs_experts_stay_with_triton_where_a_build_is_too_old_for_its_flag(sglang, served, monkeypatch) -> None:
    monkeypatch.setattr(sglang_experts.invariance, "of_sglang", lambda: "the build is too old")
    for _ in range(2):
        assert sglang_experts.around_triton_experts(lambda **_: "Triton's", **fine_experts(3)) == "Triton's"
    assert [kind["why"] for kind in gemmill.serving_report()["left"]] == ["the build is too old"]


@pytest.mark.parametrize(
    "more",
    [
        {"use_fp8_w8a8": False},
        {"block_shape": [128, 128]},
        {"block_shape": None},
        {"b1": torch.zeros(4, 192)},
        {"a1_q": torch.zeros(3, 64)},
        {"fuse_swiglu_interleaved": True},
        {"activation": "relu2"},
        {"is_gated": False},
        {"swiglu_limit": 7.0},
        {"no_combine": True},
        {"apply_router_weight_on_input": True},
        {"w1_scale": torch.ones(4, 2, 1)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_other_experts_of_sglangs_stay_with_triton(sglang, served, more: dict[str, Any]) -> None:
    given = fine_experts(3, **more)
    asked = sglang_experts.around_triton_experts(lambda **named: named, **given)
    assert asked == given, "all of the call goes on"
