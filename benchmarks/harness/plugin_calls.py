"""A process that times the Python of engines' plugins, of the gemmill that its PYTHONPATH names: ops and engines are stubs.

    python -m harness.plugin_calls cpu CALLS    then one name of a call for each line of standard input

"nothing" is an empty call, and counts in all others. Kernels' calls are as an engine makes them for each layer, without torch.compile.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.host_calls import Call, serve

ROWS, COLUMNS, DEPTH, EXPERTS, TOP = 1, 256, 512, 8, 2
_E4M3, _BF16 = torch.float8_e4m3fn, torch.bfloat16


class _Engine(ModuleType):
    """A module of vLLM's: modules below it where they are imported, else classes that do nothing."""

    __path__: list[str] = []
    VLLM_BATCH_INVARIANT = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return vars(self)[name]


def _engine_of(*names: str) -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:length]), _Engine(".".join(parts[:length])))
    for name, module in modules.items():
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(modules[parent], leaf, module)
    return modules


def calls(device: str) -> dict[str, Call]:
    """Each layer's call with its arguments bound."""
    sys.modules.update(
        _engine_of("vllm.envs", "vllm._custom_ops", "vllm.model_executor.kernels.linear", "vllm.utils.deep_gemm")
    )
    import gemmill
    from gemmill.compat import deep_gemm, linear
    from gemmill.compat.vllm import plugin as vllm_plugin

    zeros = torch.zeros
    out = zeros(ROWS, COLUMNS, dtype=_BF16, device=device)

    def stub(*given: object, **named: object) -> Tensor:
        return out

    # As in a build with variants for all, whose calls pass.
    linear.refusal = lambda layer: None
    linear.take = linear._kind = stub
    linear.served = SimpleNamespace(took=stub)
    for name in ("cutlass_scaled_mm", "fp4_weight_mm", "fused_experts"):
        setattr(gemmill, name, stub)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous = stub
    vllm_plugin.cutlass_moe_mm = stub
    return {"nothing": lambda: stub(), **_layers(out), **_experts(out), **_sglangs(out)}


def _kernel(kind: type, **attributes: object) -> Any:
    """A kernel as it is when it has processed a layer's weights."""
    kernel = kind.__new__(kind)
    vars(kernel).update({"_taken": True, "_rows": None, "_alpha": None, **attributes})
    return kernel


def _layers(out: Tensor) -> dict[str, Call]:
    """Linear layers of vLLM's."""
    from gemmill.compat.vllm import kernels as vllm_kernels

    a, b = torch.zeros(ROWS, DEPTH, dtype=_E4M3), torch.zeros(COLUMNS, DEPTH, dtype=_E4M3)
    of_tokens, of_channels, b_t = torch.ones(ROWS, 1), torch.ones(COLUMNS, 1), b.t()
    of_groups, of_blocks = torch.ones(ROWS, DEPTH // 128), torch.ones(COLUMNS // 128, DEPTH // 128)
    x, config = torch.zeros(ROWS, DEPTH, dtype=_BF16), SimpleNamespace(out_dtype=_BF16)
    fp8 = _kernel(vllm_kernels.GemmillFP8Linear)
    blocks = _kernel(vllm_kernels.GemmillBlockFP8Linear, config=config)
    fp4 = _kernel(vllm_kernels.GemmillNvFp4Linear)
    layer, shape = SimpleNamespace(weight=b, weight_scale=of_channels), [ROWS, COLUMNS]
    return {
        "vLLM's linear, FP8": lambda: fp8.apply_scaled_mm(
            A=a, B=b_t, out_dtype=_BF16, As=of_tokens, Bs=of_channels, bias=None, output_shape=shape
        ),
        "vLLM's linear, FP8 in blocks": lambda: blocks.apply_block_scaled_mm(a, b, of_groups, of_blocks),
        "vLLM's linear, nvfp4": lambda: fp4.apply_weights(layer, x),
    }


def _experts(out: Tensor) -> dict[str, Call]:
    """Experts of vLLM's."""
    from gemmill.compat.vllm import blocks as vllm_blocks
    from gemmill.compat.vllm import fused_experts as vllm_fused_experts
    from gemmill.compat.vllm import plugin as vllm_plugin

    moe_mm = vllm_plugin._before(lambda *given: out)
    contiguous = vllm_blocks.BEFORE["m_grouped_fp8_gemm_nt_contiguous"](lambda *given, **named: out)
    a, b = torch.zeros(ROWS, DEPTH, dtype=_E4M3), torch.zeros(EXPERTS, COLUMNS, DEPTH, dtype=_E4M3)
    scales, of_experts = torch.ones(ROWS, DEPTH // 128), torch.ones(EXPERTS, COLUMNS // 128, DEPTH // 128)
    ids = torch.zeros(ROWS, TOP, dtype=torch.int32)
    experts = _kernel(
        vllm_fused_experts.before(type("TritonExperts", (), {})), w1_scale=of_experts, w2_scale=of_experts
    )
    x, w2 = torch.zeros(ROWS, DEPTH, dtype=_BF16), torch.zeros(EXPERTS, DEPTH, COLUMNS // 2, dtype=_E4M3)
    rest = SimpleNamespace(value="silu"), EXPERTS, None, None, None, x, x, None, False
    return {
        "vLLM's cutlass_moe_mm": lambda: moe_mm(out, a, b, scales, of_experts, ids, ids, ids, ids, ids, True, True),
        "vLLM's DeepGEMM, contiguous": lambda: contiguous(
            (a, scales), (b, of_experts), out, ids, use_psum_layout=False
        ),
        "vLLM's experts, FP8 in one call": lambda: experts.apply(x, x, b, w2, scales, ids, *rest),
    }


def _sglangs(out: Tensor) -> dict[str, Call]:
    """Linear layers of SGLang's."""
    from gemmill.compat.sglang import plugin as sglang_plugin

    def own(*given: object, **named: object) -> Tensor:
        return out

    a, b = torch.zeros(ROWS, DEPTH, dtype=_E4M3), torch.zeros(COLUMNS, DEPTH, dtype=_E4M3)
    of_tokens, of_channels, b_t = torch.ones(ROWS, 1), torch.ones(COLUMNS, 1), b.t()
    scales, size = (torch.ones(ROWS, DEPTH // 128), torch.ones(COLUMNS // 128, DEPTH // 128)), [128, 128]
    around, around_blocks = sglang_plugin.around_scaled_mm, sglang_plugin.around_block_scaled_mm
    return {
        "SGLang's linear, FP8": lambda: around(own, a, b_t, of_tokens, of_channels, _BF16),
        "SGLang's linear, FP8 in blocks": lambda: around_blocks(own, a, b, *scales, size, _BF16),
    }


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), calls)
