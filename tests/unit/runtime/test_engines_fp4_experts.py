"""Experts of nvfp4 weights in both engines: packed in the place of Marlin's, multiplied by grouped GEMMs; the others stay theirs."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from engines import FP4_EXPERTS, MXFP4_EXPERTS, SGLANG, VLLM
from gemmill.compat import fp4_experts, linear
from gemmill.compat.sglang import experts as sglang_experts
from gemmill.compat.vllm import fused_fp4_experts
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families import grouped_mm
from gemmill.families.fused_experts.selections import packed
from gemmill.quantize import pruned, quantize_weight
from gemmill.registry import REGISTRY
from gemmill.runtime import holding, ops
from gemmill.runtime.served import serving_report
from gemmill.space.selections import select
from gemmill.vocab import Arch

E, K, N, TOP = 3, 128, 64, 2
E4M3 = torch.float8_e4m3fn
IDS = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def served(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of the grouped GEMMs of packed weights."""
    configs = [c for c in REGISTRY.configs_of(grouped_mm.NAME, select("default").configs) if "fp4" in str(c)][:40]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()
    fp4_experts._tell.cache_clear()
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "1")


@pytest.fixture
def vllm(modules_of_vllm) -> dict[str, ModuleType]:
    """vLLM's modules, after the plugin was called twice."""
    for _ in range(2):
        vllm_plugin.register()
    return modules_of_vllm


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def quantised(n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, scales and multipliers of all experts, and the values."""
    each = [quantize_weight(drawn(n, k + e)[:, :k] * (e + 1), "nvfp4") for e in range(E)]
    codes, scales = (torch.stack([getattr(w, name) for w in each]) for name in ("codes", "scales"))
    multipliers = torch.stack([1 / w.global_scale.reshape(()) for w in each])
    return codes, scales.view(E4M3), multipliers, torch.stack([w.values() for w in each])


W13, W2 = quantised(2 * N, K), quantised(K, N)
X, WEIGHTS = drawn(len(IDS), K).bfloat16(), torch.rand(IDS.shape, generator=torch.Generator().manual_seed(1))


def wanted(weights: Tensor = WEIGHTS, local: dict[int, int] | None = None) -> Tensor:
    """Each token's experts one by one; only those that `local` numbers."""
    out = torch.zeros(len(IDS), K)
    for token, experts in enumerate(IDS.tolist()):
        for place, expert in enumerate(experts):
            own = expert if local is None else local.get(expert)
            if own is not None:
                gates, ups = (W13[3][own] @ X[token].float()).bfloat16().float().chunk(2)
                row = (torch.nn.functional.silu(gates) * ups).bfloat16().float()
                out[token] += weights[token, place] * (W2[3][own] @ row)
    return out


def near(out: Tensor, right: Tensor) -> bool:
    return bool((out.float() - right).norm() <= 0.01 * right.norm())


def vllm_layer(**changes: object) -> Any:
    parallel = {"use_all2all_kernels": False, "enable_eplb": False}
    config = {"is_lora_enabled": False} | {k: v for k, v in changes.items() if k not in parallel}
    parallel |= {k: v for k, v in changes.items() if k in parallel}
    config["moe_parallel_config"] = SimpleNamespace(**parallel)
    return SimpleNamespace(moe_config=SimpleNamespace(**config), params_dtype=torch.bfloat16)


def prepared(modules: dict[str, ModuleType], layer: Any) -> Any:
    """By the name that vLLM's oracle has imported, with the arguments that vLLM's function has."""
    theirs = VLLM["modules"][FP4_EXPERTS[0][0]][FP4_EXPERTS[0][1]]["parameters"]
    given = dict(zip([name for name, *_ in theirs], (layer, *W13[:3], *W2[:3], True), strict=True))
    prepare = getattr(modules["vllm.model_executor.layers.fused_moe.oracle.nvfp4"], FP4_EXPERTS[0][1])
    return prepare(**given)


def vllm_call(packed: tuple[Tensor, ...], **changes: object) -> dict[str, Any]:
    """As MarlinExperts.apply makes it."""

    def activation(kind: object, out: Tensor, rows: Tensor, **more: object) -> None:
        gates, ups = rows.chunk(2, dim=1)
        out.copy_(torch.nn.functional.silu(gates) * ups)

    w13, base13, alpha13, w2, base2, alpha2 = packed
    call = {
        "hidden_states": X,
        "w1": w13,
        "w2": w2,
        "bias1": None,
        "bias2": None,
        "w1_scale": base13,
        "w2_scale": base2,
        "topk_weights": WEIGHTS,
        "topk_ids": IDS,
        "global_scale1": alpha13,
        "global_scale2": alpha2,
        "quant_type_id": 0,
        "apply_router_weight_on_input": False,
        "activation": SimpleNamespace(is_gated=True),
        "activation_func": activation,
        "moe_sum": None,
        "expert_map": None,
        "output": torch.full_like(X, torch.nan),
        "mul_topk_weights_in_gemm2": True,
    } | changes
    assert call.keys() <= {name for name, *_ in VLLM["modules"][FP4_EXPERTS[1][0]][FP4_EXPERTS[1][1]]["parameters"]}
    return call


def test_vllms_experts(vllm, caplog) -> None:
    packed = prepared(vllm, vllm_layer())
    assert [t.dtype for t in packed] == [torch.uint8, torch.float32, torch.float32] * 2
    assert packed[0].dim() == packed[3].dim() == 3, "vLLM's MarlinExperts looks"
    fused = getattr(vllm[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    call = vllm_call(packed)
    assert fused(**call) is call["output"] and near(call["output"], wanted())
    ones = torch.ones_like(WEIGHTS)
    assert near(fused(**vllm_call(packed, mul_topk_weights_in_gemm2=False)), wanted(ones))
    told = fused(**vllm_call(packed, moe_sum=lambda rows, out, ids, expert_map: (rows, out.shape, ids, expert_map)))
    assert near(told[0].sum(1), wanted()) and told[1:] == (X.shape, told[2], None) and told[2] is IDS
    of_marlin = vllm_call((packed[0].int(), *packed[1:]))
    assert fused(**of_marlin) == "vLLM's"


def test_vllms_experts_of_a_rank(vllm) -> None:
    """Rows of experts that another rank has are 0, whatever memory held."""
    fused = getattr(vllm[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    expert_map = torch.tensor([1, -1, 2], dtype=torch.int32)
    out = fused(**vllm_call(prepared(vllm, vllm_layer()), expert_map=expert_map))
    assert near(out, wanted(local={0: 1, 2: 2}))


@pytest.fixture
def in_one_call(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of fused experts of packed weights alone."""
    configs = list(packed(Arch.SM90A))
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))


def plain_layer() -> Any:
    layer = vllm_layer()
    layer.moe_config.activation = SimpleNamespace(value="silu", is_gated=True)
    return layer


def one_call(modules: dict[str, ModuleType], made: Any, **changes: object) -> Tensor:
    fused = getattr(modules[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    return fused(
        **vllm_call(made, activation=SimpleNamespace(value="silu", is_gated=True), activation_func=None, **changes)
    )


def test_vllms_experts_in_one_call(vllm, in_one_call) -> None:
    made = prepared(vllm, plain_layer())
    assert [tensor.dim() for tensor in made] == [3, 3, 1] * 2 and made[0].dtype == torch.uint8
    out = torch.full_like(X, torch.nan)
    assert one_call(vllm, made, output=out) is out and near(out, wanted())
    assert near(one_call(vllm, made, mul_topk_weights_in_gemm2=False), wanted(torch.ones_like(WEIGHTS)))
    told = one_call(vllm, made, mul_topk_weights_in_gemm2=False, moe_sum=lambda rows, *more: (rows, *more))
    assert told[0].shape == (*IDS.shape, K) and near(told[0].sum(1), wanted(torch.ones_like(WEIGHTS)))
    expert_map = torch.tensor([1, -1, 2], dtype=torch.int32)
    assert near(one_call(vllm, made, expert_map=expert_map), wanted(local={0: 1, 2: 2}))
    limited = plain_layer()
    limited.moe_config.swiglu_limit = 7.0
    assert prepared(vllm, limited) == "vLLM's"
    gates = vllm_layer()
    gates.moe_config.activation = SimpleNamespace(value="swigluoai", is_gated=True)
    assert prepared(vllm, gates) == "vLLM's", "the build has no grouped GEMMs, and gates have limits"


def chosen(modules: dict[str, ModuleType], **changes: object) -> str:
    """The backend that vLLM takes for a layer of nvfp4 experts, by the name that ModelOpt's method has imported."""
    config = plain_layer().moe_config
    sizes = {"num_local_experts": len(W13[0]), "hidden_dim": K, "intermediate_size_per_partition": N}
    vars(config).update({"in_dtype": torch.bfloat16, "moe_backend": "auto"} | sizes | changes)
    backend = config.moe_backend
    choose = modules["vllm.model_executor.layers.quantization.modelopt"].select_nvfp4_moe_backend
    found, _ = choose(config=config, weight_key=None, activation_key=None)
    assert config.moe_backend == backend
    return found.name


def test_vllm_takes_marlins_backend_for_nvfp4_experts_that_gemmill_takes(vllm, in_one_call, monkeypatch) -> None:
    """With humming-kernels installed vLLM names Humming's, before which gemmill does not stand."""
    assert chosen(vllm) == "MARLIN"
    assert chosen(vllm, moe_backend="humming") == "HUMMING" and chosen(vllm, moe_backend="emulation") == "EMULATION"
    stays = [
        {"in_dtype": torch.float16},
        {"swiglu_limit": 7.0},
        {"has_bias": True},
        {"is_lora_enabled": True},
        {"hidden_dim": K + 1},
        {"activation": SimpleNamespace(value="swigluoai")},
        {"experts_per_token": 65},  # Marlin's own kernels refuse it
    ]
    assert [chosen(vllm, **change) for change in stays] == ["HUMMING"] * len(stays)
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "0")
    assert chosen(vllm) == "HUMMING"


def test_vllm_keeps_hummings_experts_without_kernels_for_them(vllm) -> None:
    assert chosen(vllm) == "HUMMING"


def test_vllms_experts_pruned_at_load(vllm, in_one_call, monkeypatch, caplog, tmp_path) -> None:
    """Two of four codes are kept, by magnitude; scales and multipliers stay."""
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "2:4")
    made = prepared(vllm, plain_layer())
    blocks = made[0]
    assert blocks.shape[2] == 4 * 1792 and "2:4 pruning changed weights of 3 experts by 0.1" in caplog.text
    right = torch.zeros(len(IDS), K)
    first, second = (torch.stack([pruned(w) for w in weights[3]]) for weights in (W13, W2))
    for token, experts in enumerate(IDS.tolist()):
        for place, expert in enumerate(experts):
            gates, ups = (first[expert] @ X[token].float()).bfloat16().float().chunk(2)
            inner = (torch.nn.functional.silu(gates) * ups).bfloat16().float()
            right[token] += WEIGHTS[token, place] * (second[expert] @ inner)
    assert near(one_call(vllm, made), right) and not near(one_call(vllm, made), wanted())
    monkeypatch.setattr(ops, "_active", None)
    monkeypatch.setenv("GEMMILL_HOME", str(tmp_path))  # which has no build
    linear.forget()
    assert prepared(vllm, plain_layer()) == "vLLM's", "nothing is pruned that no kernel takes"


def fails(module: Any, name: str, monkeypatch: Any, *, meta: bool) -> None:
    """Has a function raise where it gets meta tensors, or others."""
    right = getattr(module, name)

    def failing(x: Tensor, *operands: Any, **named: Any) -> Tensor:
        if x.is_meta == meta:
            raise RuntimeError("base is bf16:\npass f32")
        return right(x, *operands, **named)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize("meta", [True, False])
def test_experts_whose_first_call_fails_stay_with_marlin(vllm, monkeypatch, caplog, meta: bool) -> None:
    """Both engines' and their weights as Marlin needs them."""
    fails(gemmill, "grouped_mm", monkeypatch, meta=meta)
    assert prepared(vllm, vllm_layer()) == "vLLM's"
    assert mxfp4_prepared(vllm, vllm_layer())[0] == "vLLM's"
    layer = sglang_layer(monkeypatch)
    before = dict(vars(layer))
    assert sglang_experts.around_fp4_experts_preparation(own, layer) == "SGLang's" and vars(layer) == before
    which = "its first call of meta tensors, as torch.compile's fake ones," if meta else "its first call"
    assert caplog.messages == [
        f"a layer of 3 experts of N x K = 128 x 128, {format} weights, bfloat16 activations stays with the engine: {which} failed "
        "(base is bf16: pass f32)"
        for format in ("nvfp4", "mxfp4")
    ]


@pytest.mark.parametrize("meta", [True, False])
def test_experts_in_one_call_that_fails_stay_with_marlin(vllm, in_one_call, monkeypatch, caplog, meta: bool) -> None:
    fails(gemmill, "fused_experts", monkeypatch, meta=meta)
    assert prepared(vllm, plain_layer()) == "vLLM's"
    assert "3 experts of 128 x 64, nvfp4 weights, all in one call stays with the engine: its first call " in caplog.text


def test_experts_that_are_taken_are_told(vllm, caplog) -> None:
    """With their number, after all weights have been processed."""
    caplog.set_level("INFO")
    layers = [vllm_layer() for _ in range(2)]
    assert all(prepared(vllm, layer) != "vLLM's" for layer in layers) and not caplog.messages
    vllm["vllm.model_executor.model_loader.base_loader"].process_weights_after_loading([], None, None)
    (message,) = caplog.messages
    kind = "layer of 3 experts of N x K = 128 x 128, nvfp4 weights, bfloat16 activations"
    assert message.startswith(f"grouped_fp4_mm takes a {kind}, 2 of them: build ")


@pytest.mark.parametrize("change", ["is_lora_enabled", "use_all2all_kernels", "enable_eplb"])
def test_vllms_experts_that_stay_with_marlin(vllm, change: str) -> None:
    assert prepared(vllm, vllm_layer(**{change: True})) == "vLLM's"
    stays_with(change)


def stays_with(change: str) -> None:
    """The report names the reason, for all layers once."""
    why = "layer with LoRA here" if change == "is_lora_enabled" else "experts whose rows travel between ranks"
    assert {"layer": "layer of experts of 4-bit weights", "why": f"gemmill takes no {why}"} in serving_report()["left"]


def test_experts_hold_an_order_where_vllm_asks_for_batch_invariance(vllm, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: holding.set_batch_invariant(False))
    vllm["vllm.envs"].VLLM_BATCH_INVARIANT = True
    assert not holding.holds_here()
    assert prepared(vllm, vllm_layer()) != "vLLM's" and holding.holds_here()


def test_experts_that_were_measured_to_be_faster_are_taken_unasked(vllm, in_one_call, monkeypatch, caplog) -> None:
    """Those with plain gates in one call, unless all are left to Marlin."""
    monkeypatch.delenv("GEMMILL_FP4_EXPERTS")
    assert fused_fp4_experts.is_packed(*prepared(vllm, plain_layer())[:2])
    assert mxfp4_prepared(vllm, plain_layer())[0] == "vLLM's"
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "0")
    assert prepared(vllm, plain_layer()) == "vLLM's"


def test_experts_stay_with_marlin_unless_they_are_asked_for(vllm, monkeypatch, caplog) -> None:
    """Told once."""
    caplog.set_level("INFO")
    monkeypatch.delenv("GEMMILL_FP4_EXPERTS")
    assert [prepared(vllm, vllm_layer()) for _ in range(2)] == ["vLLM's"] * 2
    layer = sglang_layer(monkeypatch)
    assert sglang_experts.around_fp4_experts_preparation(own, layer) == "SGLang's"
    assert caplog.messages == [
        "experts of 4-bit weights stay with the engine's Marlin kernels: GEMMILL_FP4_EXPERTS=1 gives them to gemmill"
    ]


def mxfp4_prepared(modules: dict[str, ModuleType], layer: Any) -> tuple[Any, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """As vLLM's oracle calls it, with biases as gpt-oss has them: the kept weights; values of both weights; biases."""
    parameters = VLLM["modules"][MXFP4_EXPERTS[0]][MXFP4_EXPERTS[1]]["parameters"]
    assert [name for name, *_ in parameters] == "layer w13 w2 w13_scale w2_scale w13_bias w2_bias".split()
    both = [[quantize_weight(drawn(n, k + e)[:, :k], "mxfp4") for e in range(E)] for n, k in ((2 * N, K), (K, N))]
    codes, scales = ([torch.stack([getattr(w, name) for w in each]) for each in both] for name in ("codes", "scales"))
    biases = drawn(E, 2 * N), drawn(E, K)
    made = getattr(modules[MXFP4_EXPERTS[0]], MXFP4_EXPERTS[1])(layer, *codes, *scales, *biases)
    return made, torch.stack([w.values() for w in both[0]]), torch.stack([w.values() for w in both[1]]), biases


def test_vllms_mxfp4_experts(vllm) -> None:
    """With the gates of gpt-oss: a limit, 1.702, and ups plus one."""
    made, first, second, biases = mxfp4_prepared(vllm, vllm_layer())
    assert [t.dtype for t in made] == [torch.uint8] * 2 + [torch.float32] * 2 + [torch.bfloat16] * 2

    def swigluoai(kind: object, out: Tensor, rows: Tensor, **more: object) -> None:
        gates, ups = rows[:, 0::2].float().clamp(max=7.0), rows[:, 1::2].float().clamp(-7.0, 7.0)
        out.copy_((ups + 1) * gates * torch.sigmoid(1.702 * gates))

    call = vllm_call((made[0], made[2], None, made[1], made[3], None), activation_func=swigluoai)
    call |= {"bias1": made[4], "bias2": made[5]}
    fused = getattr(vllm[FP4_EXPERTS[1][0]], FP4_EXPERTS[1][1])
    right = torch.zeros(len(IDS), K)
    for token, chosen in enumerate(IDS.tolist()):
        for place, expert in enumerate(chosen):
            rows = (first[expert] @ X[token].float() + biases[0][expert].bfloat16().float()).bfloat16()
            swigluoai(None, inner := torch.empty(1, N, dtype=torch.bfloat16), rows[None])
            end = second[expert] @ inner[0].float() + biases[1][expert].bfloat16().float()
            right[token] += WEIGHTS[token, place] * end
    assert near(fused(**call), right)


@pytest.mark.parametrize("change", ["is_lora_enabled", "use_all2all_kernels", "enable_eplb"])
def test_vllms_mxfp4_experts_that_stay_with_marlin(vllm, change: str) -> None:
    assert mxfp4_prepared(vllm, vllm_layer(**{change: True}))[0] == "vLLM's"
    stays_with(change)


def test_vllm_without_marlins_experts(vllm, caplog) -> None:
    """The rest of the plugin serves."""
    for name, function in (*FP4_EXPERTS, MXFP4_EXPERTS):
        vars(vllm[name]).pop(function, None)
    linear._complained.clear()
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith(
        "vLLM for experts of 4 bits goes on with its own kernels: gemmill cannot serve here (module 'vllm"
    )


def sglang_layer(monkeypatch, lora: bool = False, **changes: object) -> Any:
    context = ModuleType("sglang.srt.runtime_context")
    context.get_lora = lambda: SimpleNamespace(enable_lora=lora)
    monkeypatch.setitem(sys.modules, context.__name__, context)
    runner = {"is_gated": True, "activation": "silu", "gemm1_alpha": None, "swiglu_limit": None} | changes
    tensors = {
        f"{prefix}_{name}": torch.nn.Parameter(tensor, requires_grad=False)
        for prefix, made in (("w13", W13), ("w2", W2))
        for name, tensor in zip(("weight", "weight_scale", "weight_scale_2"), made, strict=False)
    }
    return SimpleNamespace(
        moe_runner_config=SimpleNamespace(**runner),
        params_dtype=torch.bfloat16,
        quant_config=SimpleNamespace(group_size=16),
        **tensors,
    )


def own(*given: object, **named: object) -> str:
    return "SGLang's"


def test_sglangs_experts(monkeypatch) -> None:
    prepare, fused = sglang_experts.around_fp4_experts_preparation, sglang_experts.around_marlin_experts
    layer = sglang_layer(monkeypatch)
    assert prepare(own, layer) is None and layer.w13_weight.dtype == torch.uint8
    call = {
        "hidden_states": X,
        "w1": layer.w13_weight,
        "w2": layer.w2_weight,
        "w1_scale": layer.w13_weight_scale,
        "w2_scale": layer.w2_weight_scale,
        "w1_global_scale": layer.w13_weight_scale_2,
        "w2_global_scale": layer.w2_weight_scale_2,
        "topk_weights": WEIGHTS,
        "topk_ids": IDS,
        "expert_map": None,
        "routed_scaling_factor": 2.0,
        "no_combine": False,
    }
    theirs = SGLANG["modules"]["sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe"]["fused_marlin_moe"]
    assert call.keys() <= {name for name, *_ in theirs["parameters"]}
    assert near(fused(own, **call), 2 * wanted())
    rows = fused(own, **call | {"no_combine": True})
    assert rows.shape == (*IDS.shape, K) and near(rows.sum(1), wanted())
    assert fused(own, **call | {"w1": torch.zeros(E, 8, 2 * K, dtype=torch.int32)}) == "SGLang's"


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": True},
        {"is_gated": False},
        {"activation": "situ"},
        {"swiglu_limit": 7.0},
        {"gemm1_alpha": 1.7},
        {"gemm1_clamp_limit": 1.0},
    ],
)
def test_sglangs_experts_that_stay_with_marlin(monkeypatch, changes: dict[str, Any]) -> None:
    layer = sglang_layer(monkeypatch, **changes)
    kept = layer.w13_weight
    assert sglang_experts.around_fp4_experts_preparation(own, layer) == "SGLang's" and layer.w13_weight is kept


def test_weights_that_do_not_fit_stay_with_marlin(monkeypatch) -> None:
    prepare = sglang_experts.around_fp4_experts_preparation
    assert prepare(own, sglang_layer(monkeypatch), group_size=32) == "SGLang's"
    layer = sglang_layer(monkeypatch)
    layer.params_dtype = torch.float32
    assert prepare(own, layer) == "SGLang's"
    layer = sglang_layer(monkeypatch)
    layer.w2_bias = torch.zeros(E, K)
    assert prepare(own, layer) == "SGLang's"
