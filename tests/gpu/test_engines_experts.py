"""Experts of serving engines through the plugins on a GPU: their results, eager and in graphs; engines' modules are stand-ins."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from engines import FP4_EXPERTS, MXFP4_EXPERTS, vllm_modules
from gemmill.compat import fp4_experts, fused_experts
from gemmill.compat.sglang import experts as sglang_experts
from gemmill.compat.vllm import fp4_experts as vllm_fp4_experts
from gemmill.compat.vllm import fused_experts as vllm_fused_experts
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize import quantize_weight

E, TOP, K, N = 8, 3, 512, 256
E4M3 = torch.float8_e4m3fn
TOKENS = (1, 5, 64, 400)
OF_CODES = 2**-6.4
"""The share by which a layer may differ whose activated rows are codes with scales of blocks.

The tensor core's sums of e4m3 lose about 2^-10, which moves one code in 50 by a step. A step is a twelfth of a code in the mean, so the norm of
the difference is about 2^-6.4 of the whole.
"""
tokens = pytest.mark.parametrize("m", TOKENS)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "1")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """vLLM's modules, whose experts gemmill stands before."""
    modules = vllm_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    vllm_fp4_experts.put_before()
    vllm_fused_experts.put_before()
    yield modules


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def routed(m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """x, experts and weights of m tokens."""
    generator = torch.Generator().manual_seed(m)
    ids = torch.rand(m, E, generator=generator).topk(TOP).indices.int()
    weights = torch.rand(m, TOP, generator=generator)
    return drawn(m, K).bfloat16().to(device), ids.to(device), weights.to(device)


def quantised(format: str, n: int, k: int) -> list[BlockScaled]:
    return [quantize_weight(drawn(n, k + e)[:, :k] * (1 + e % 3), format) for e in range(E)]


def parts_of(each: list[Any], device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    codes, scales = (torch.stack([getattr(w, name) for w in each]).to(device) for name in ("codes", "scales"))
    if each[0].global_scale is None:
        return codes, scales, None
    return codes, scales.view(E4M3), torch.stack([1 / w.global_scale.reshape(()) for w in each]).to(device)


def gated(rows: Tensor) -> Tensor:
    gates, ups = rows.chunk(2, dim=1)
    return torch.nn.functional.silu(gates) * ups


def activation_func(kind: object, out: Tensor, rows: Tensor, **more: object) -> None:
    out.copy_(gated(rows))


def wanted(
    x: Tensor, ids: Tensor, by: Tensor, first: Tensor, second: Tensor, biases: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Each token's experts one by one, rounded where kernels round."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, chosen in enumerate(ids.tolist()):
        for place, expert in enumerate(chosen):
            row = first[expert] @ x[token].double().cpu() + (0 if biases is None else biases[0][expert].double())
            inner = gated(row.bfloat16().double()[None])[0].bfloat16().double()
            end = second[expert] @ inner + (0 if biases is None else biases[1][expert].double())
            out[token] += float(by[token, place]) * end
    return out


def check(call: Callable[[], Tensor], right: Tensor, device: torch.device, share: float = 2**-7) -> None:
    """Sums in another order, rounded to bf16 before and after weighing: 2^-7 of the whole; the same from a graph."""
    first = call().clone()
    assert (first.double().cpu() - right).norm() <= share * right.norm()
    if device.type != "cuda":
        return
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first)


def fp4_layer(device: torch.device, format: str) -> tuple[tuple[Any, ...], tuple[Tensor, Tensor]]:
    both = quantised(format, 2 * N, K), quantised(format, K, N)
    values = tuple(torch.stack([w.values().double() for w in each]) for each in both)
    return tuple(parts_of(each, device) for each in both), values  # type: ignore[return-value]


def layer_of_vllm() -> Any:
    parallel = SimpleNamespace(use_all2all_kernels=False, enable_eplb=False)
    return SimpleNamespace(
        moe_config=SimpleNamespace(is_lora_enabled=False, moe_parallel_config=parallel), params_dtype=torch.bfloat16
    )


def call_of(x: Tensor, ids: Tensor, by: Tensor, weights: dict[str, Any]) -> dict[str, Any]:
    return weights | {
        "hidden_states": x,
        "topk_weights": by,
        "topk_ids": ids,
        "quant_type_id": 0,
        "activation": SimpleNamespace(is_gated=True),
        "activation_func": activation_func,
        "output": torch.full_like(x, torch.nan),
    }


@tokens
@pytest.mark.needs_build
def test_vllms_nvfp4_experts(vllm: dict[str, ModuleType], m: int, device: torch.device) -> None:
    parts, values = fp4_layer(device, "nvfp4")
    names = ("w13", "w13_scale", "w13_scale_2"), ("w2", "w2_scale", "w2_scale_2")
    given = {name: tensor for of, part in zip(names, parts, strict=True) for name, tensor in zip(of, part, strict=True)}
    made = getattr(vllm[FP4_EXPERTS[0][0]], FP4_EXPERTS[0][1])(layer=layer_of_vllm(), **given)
    if made == "vLLM's":
        pytest.skip("the build has no variants for nvfp4 experts")
    keys = ("w1", "w1_scale", "global_scale1", "w2", "w2_scale", "global_scale2")
    x, ids, by = routed(m, device)
    call = call_of(x, ids, by, dict(zip(keys, made, strict=True)) | {"bias1": None, "bias2": None})
    fused = getattr(vllm[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    check(lambda: fused(**call), wanted(x, ids, by, *values), device)


@tokens
@pytest.mark.needs_build
def test_vllms_mxfp4_experts(vllm: dict[str, ModuleType], m: int, device: torch.device) -> None:
    """With biases, as gpt-oss has them."""
    parts, values = fp4_layer(device, "mxfp4")
    biases = drawn(E, 2 * N).bfloat16(), drawn(E, K).bfloat16()
    (w13, w13_scale, _), (w2, w2_scale, _) = parts
    prepare = getattr(vllm[MXFP4_EXPERTS[0]], MXFP4_EXPERTS[1])
    made = prepare(layer_of_vllm(), w13, w2, w13_scale, w2_scale, *(bias.to(device) for bias in biases))
    if made == "vLLM's":
        pytest.skip("the build has no variants for mxfp4 experts")
    keys = ("w1", "w2", "w1_scale", "w2_scale", "bias1", "bias2")
    x, ids, by = routed(m, device)
    call = call_of(x, ids, by, dict(zip(keys, made, strict=True)) | {"global_scale1": None, "global_scale2": None})
    fused = getattr(vllm[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    check(lambda: fused(**call), wanted(x, ids, by, *values, biases), device)


@tokens
@pytest.mark.needs_build
def test_sglangs_nvfp4_experts(m: int, device: torch.device) -> None:
    parts, values = fp4_layer(device, "nvfp4")
    made = fp4_experts.packed(parts, torch.bfloat16, object())
    if made is None:
        pytest.skip("the build has no variants for nvfp4 experts")
    x, ids, by = routed(m, device)
    call = {"hidden_states": x, "topk_weights": by, "topk_ids": ids, "routed_scaling_factor": 1.0}
    for name, weights in zip(("w1", "w2"), made, strict=True):
        call |= {name: weights.blocks, f"{name}_scale": weights.base, f"{name}_global_scale": weights.alpha}
    check(lambda: sglang_experts.around_marlin_experts(print, **call), wanted(x, ids, by, *values), device)


@tokens
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
@pytest.mark.needs_build
def test_experts_of_a_rank(format: str, m: int, device: torch.device) -> None:
    """Those of experts that another rank has are 0, whatever memory held; numbers of no expert too."""
    parts, values = fp4_layer(device, format)
    half = tuple(tuple(None if tensor is None else tensor[: E // 2] for tensor in part) for part in parts)
    made = fp4_experts.packed(half, torch.bfloat16, object())  # type: ignore[arg-type]
    if made is None:
        pytest.skip(f"the build has no variants for {format} experts")
    x, ids, by = routed(m, device)
    expert_map = torch.tensor([*range(E // 2), *[-1] * (E // 2)], dtype=torch.int32, device=device)
    known = by * (ids < E // 2)
    right = wanted(x, ids, known, *values)
    check(
        lambda: fp4_experts.multiplied(x, *made, gated, by, ids, expert_map).float().sum(1),
        right,
        device,
    )


@tokens
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.needs_build
def test_vllms_fp8_experts(vllm: dict[str, ModuleType], m: int, blocks: bool, device: torch.device) -> None:
    """By the class that stands before Triton's; more tokens than it takes are Triton's."""
    w1, w2 = drawn(E, 2 * N, K).to(E4M3).to(device), drawn(E, K, N).to(E4M3).to(device)
    scales = _scales(2 * N, K, blocks), _scales(K, N, blocks)
    module, name = vllm_fused_experts.CHOOSES
    ours = getattr(vllm[module], name)(vllm[module].Fp8MoeBackend.TRITON)[0]
    of_layer = SimpleNamespace(w1_scale=scales[0].to(device), w2_scale=scales[1].to(device))
    experts = ours(moe_config=SimpleNamespace(), quant_config=of_layer)
    x, ids, by = routed(m, device)
    first, second, _ = experts.workspace_shapes(m, 2 * N, K, TOP, E, E, None, None)
    room = [torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device) for shape in (first, second)]
    output = torch.full_like(x, torch.nan)
    kind = SimpleNamespace(value="silu")

    def call() -> Any:
        given = output, x, w1, w2, by, ids, kind, E, None, None, None, *room, None, False
        told = experts.apply(*given)
        return output if told is None else told

    if m > fused_experts.MOST_TOKENS[blocks]:
        assert call()[0] == "vLLM's"
        return
    if not gemmill.supports("fused_experts", dtype=E4M3, group_size=128 if blocks else 0):
        assert call()[0] == "vLLM's"
        pytest.skip("the build has no variants for such experts")
    assert call() is output, "a call that fails is vLLM's"
    check(call, _fp8_wanted(x, ids, by, (w1, w2), scales, blocks), device, OF_CODES if blocks else 2**-7)


def _scales(n: int, k: int, blocks: bool) -> Tensor:
    """As vLLM's checkpoints have them: [E, rows, 1] where they are of rows."""
    shape = (E, n // 128, k // 128) if blocks else (E, n, 1)
    return torch.rand(shape, generator=torch.Generator().manual_seed(n + k)) * 0.02 + 0.005


def _fp8_wanted(
    x: Tensor, ids: Tensor, by: Tensor, codes: tuple[Tensor, Tensor], scales: tuple[Tensor, Tensor], blocks: bool
) -> Tensor:
    full = []
    for weight, scale in zip(codes, scales, strict=True):
        each = scale.repeat_interleave(128, 1).repeat_interleave(128, 2) if blocks else scale
        full.append(weight.cpu().double() * each)
    out, of_codes = torch.zeros(x.shape, dtype=torch.float64), _coded(x.cpu(), blocks)
    for token, chosen in enumerate(ids.tolist()):
        for place, expert in enumerate(chosen):
            inner = gated((full[0][expert] @ of_codes[token]).bfloat16().double()[None])
            out[token] += float(by[token, place]) * (full[1][expert] @ _coded(inner, blocks)[0])
    return out


def _coded(x: Tensor, blocks: bool) -> Tensor:
    """Activations as codes, and back."""
    parts = x.double().reshape(len(x), -1, 128 if blocks else x.shape[1])
    scale = (parts.abs().amax(2, keepdim=True) / 448).float().double()
    return ((parts / scale).float().to(E4M3).double() * scale).view(x.shape)
