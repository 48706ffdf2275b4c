"""SGLang's plugin: its hooks, the calls that they take, and deterministic inference."""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engines import SGLANG, sglang_modules
from gemmill.compat import linear
from gemmill.compat.sglang import experts as sglang_experts
from gemmill.compat.sglang import plugin as sglang_plugin
from gemmill.runtime import holding, ops
from gemmill.runtime.choosing import Trust

E4M3 = torch.float8_e4m3fn


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
        if hook is not sglang_experts.around_marlin_experts:  # it reads a few of many, all given by name
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
