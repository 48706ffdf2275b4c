"""vLLM's modular interface of experts: which layers and calls are gemmill's, and its output, against recorded interfaces."""

import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from engines import CLASSES, VLLM, quant_key
from gemmill.compat import fused_experts as whole_experts
from gemmill.compat import linear
from gemmill.compat.vllm import fused_experts as vllm_fused_experts
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families.fused_experts import selections
from gemmill.families.grouped_mm.selections import tiled
from gemmill.runtime import holding, ops
from gemmill.vocab import Arch, DType

E, K, N, TOP = 4, 256, 128, 2
E4M3 = torch.float8_e4m3fn
BLOCKS, FINE, ROWS = ((128, 128), (1, 128)), ((32, 32), (1, 128)), ((-1, 1), (1, -1))
SIZES = {BLOCKS: 128, FINE: 32, ROWS: 0}
FORMAT = "standard"


@pytest.fixture(autouse=True)
def served(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of fused experts, with the grouped GEMMs that those of groups of 32 need."""
    configs = (*selections.default(Arch.SM90A), *(c for c in tiled(Arch.SM90A) if c.group_size == 32))
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()


@pytest.fixture
def apart(monkeypatch) -> None:
    """Grouped GEMMs compute many tokens, of layers as small as these, too."""
    monkeypatch.setattr(whole_experts, "goes_apart", lambda experts, build_id: True)


@pytest.fixture
def oracle(modules_of_vllm) -> ModuleType:
    """vLLM's module that chooses, after the plugin was called twice."""
    for _ in range(2):
        vllm_plugin.register()
    return modules_of_vllm[vllm_fused_experts.CHOOSES[0]]


def classes(oracle: ModuleType, backend: str = "TRITON") -> list[type]:
    return getattr(oracle, vllm_fused_experts.CHOOSES[1])(oracle.Fp8MoeBackend[backend])


def moe_config(**changes: object) -> Any:
    """As vLLM 0.33 has it, of the fields that the plugin reads."""
    parallel = {"use_all2all_kernels": False, "enable_eplb": False}
    config = {
        "num_local_experts": E,
        "experts_per_token": TOP,
        "hidden_dim": K,
        "intermediate_size_per_partition": N,
        "activation": SimpleNamespace(value="silu"),
        "is_act_and_mul": True,
        "in_dtype": torch.bfloat16,
        "moe_backend": "auto",
        "has_bias": False,
        "is_lora_enabled": False,
        "swiglu_limit": None,
        "swiglu_alpha": None,
        "swiglu_beta": None,
    }
    theirs = {"FusedMoEConfig": config, "FusedMoEParallelConfig": parallel}
    for name, fields in theirs.items():
        known = {*CLASSES[name]["fields"], *CLASSES[name]["methods"]}
        assert fields.keys() - {"moe_parallel_config"} <= known, name
    config |= {
        "moe_parallel_config": SimpleNamespace(**parallel | {k: changes.pop(k) for k in [*changes] if k in parallel})
    }
    return SimpleNamespace(**config | changes)


def keys(groups: Any, **changes: object) -> tuple[Any, Any]:
    made = [quant_key(group, static=i == 0) for i, group in enumerate(groups)]
    for key in made:
        vars(key).update({"symmetric": True} | changes)
    return made[0], made[1]


def asked(oracle: ModuleType, config: Any, given: tuple[Any, Any], format: str = FORMAT) -> tuple[bool, str | None]:
    ours = classes(oracle)[0]
    return ours.is_supported_config(ours, config, *given, format)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def scales_of(shape: tuple[int, int], blocks: int) -> Tensor:
    """As vLLM's checkpoints have them: [E, rows, 1] where they are of rows."""
    n, k = (-(-size // blocks) for size in shape) if blocks else (shape[0], 1)
    return torch.rand((E, n, k), generator=torch.Generator().manual_seed(n + k)) * 0.02 + 0.005


def whole(codes: Tensor, scales: Tensor, blocks: int) -> Tensor:
    if blocks:
        scales = scales.repeat_interleave(blocks, 1).repeat_interleave(blocks, 2)
    return codes.double() * scales


def coded(x: Tensor, blocks: int) -> Tensor:
    """Activations as codes, and back."""
    parts = x.double().reshape(len(x), -1, blocks or x.shape[1])
    scale = (parts.abs().amax(2, keepdim=True) / 448).float().double()
    return ((parts / scale).float().to(E4M3).double() * scale).view(x.shape)


def failing(*given: object, **named: object) -> None:
    raise RuntimeError("scales are bf16,\nnot f32")


def layer(oracle: ModuleType, blocks: int) -> tuple[Any, Tensor, Tensor]:
    w1, w2 = drawn(E, 2 * N, K).to(E4M3), drawn(E, K, N).to(E4M3)
    scales = scales_of((2 * N, K), blocks), scales_of((K, N), blocks)
    experts = classes(oracle)[0](
        moe_config=moe_config(), quant_config=SimpleNamespace(w1_scale=scales[0], w2_scale=scales[1])
    )
    return experts, w1, w2


def routed(m: int) -> tuple[Tensor, Tensor]:
    ids = torch.rand(m, E, generator=torch.Generator().manual_seed(m)).topk(TOP).indices.int()
    return torch.rand(m, TOP, generator=torch.Generator().manual_seed(m + 1)), ids


def applied(experts: Any, x: Tensor, w1: Tensor, w2: Tensor, **changes: object) -> tuple[Any, Tensor]:
    """As FusedMoEKernelModularImpl calls it: everything by name, output in the memory of the first workspace."""
    m, (weights, ids) = len(x), routed(len(x))
    activation = SimpleNamespace(value="silu")
    first, second, out = experts.workspace_shapes(m, 2 * N, K, TOP, E, E, None, activation)
    room = torch.full((max(torch.Size(first).numel(), torch.Size(out).numel()),), torch.nan, dtype=torch.bfloat16)
    output = room[: torch.Size(out).numel()].view(out)
    call = {
        "output": output,
        "hidden_states": x,
        "w1": w1,
        "w2": w2,
        "topk_weights": weights,
        "topk_ids": ids,
        "activation": activation,
        "global_num_experts": E,
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": room[: torch.Size(first).numel()].view(first),
        "workspace2": torch.full(second, torch.nan, dtype=torch.bfloat16),
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    } | changes
    assert list(call) == [name for name, *_ in CLASSES["FusedMoEExpertsModular"]["methods"]["apply"]["parameters"][1:]]
    return experts.apply(**call), output


def wanted(experts: Any, x: Tensor, w1: Tensor, w2: Tensor, blocks: int, own: dict[int, int], by: Tensor) -> Tensor:
    """Each token's experts one by one; of experts that `own` numbers."""
    full1, full2 = whole(w1, experts.w1_scale, blocks), whole(w2, experts.w2_scale, blocks)
    out, codes = torch.zeros(x.shape, dtype=torch.float64), coded(x, blocks)
    for token, chosen in enumerate(routed(len(x))[1].tolist()):
        for place, expert in enumerate(chosen):
            if expert in own:
                gates, ups = (full1[own[expert]] @ codes[token]).bfloat16().double().chunk(2)
                row = coded((torch.nn.functional.silu(gates) * ups)[None], blocks)[0]
                out[token] += by[token, place] * (full2[own[expert]] @ row)
    return out


def near(found: Tensor, right: Tensor) -> bool:
    return bool((found.double() - right).norm() <= 0.01 * right.norm())


def test_the_class_has_vllms_methods(oracle) -> None:
    ours, theirs = classes(oracle)
    assert issubclass(ours, theirs) and [c.__name__ for c in classes(oracle, "DEEPGEMM")] == ["DEEPGEMMExperts"]
    known = {
        name: of
        for base in ("FusedMoEExperts", "FusedMoEExpertsModular", "TritonExperts")
        for name, of in CLASSES[base]["methods"].items()
    }
    mine = [name for name in vars(ours) if not name.startswith("__")]
    assert len(mine) == 5, mine
    for name in mine:
        kind = vars(ours)[name]
        function = kind.fget if isinstance(kind, property) else getattr(kind, "__func__", kind)
        assert list(inspect.signature(function).parameters) == [given for given, *_ in known[name]["parameters"]], name
        assert isinstance(kind, staticmethod) == ("staticmethod" in known[name]["decorators"])
        assert isinstance(kind, property) == ("property" in known[name]["decorators"])


def test_vllms_prepare_leaves_activations_to_experts_that_ask_for_it() -> None:
    (of,) = [CLASSES["MoEPrepareAndFinalizeNoDPEPModular"]["methods"]["prepare"]]
    assert ["defer_input_quant", "positional", True] in of["parameters"]
    assert "TRITON" in VLLM["modules"][vllm_fused_experts.CHOOSES[0]]["Fp8MoeBackend"]["members"]


@pytest.mark.parametrize("groups", SIZES)
def test_layers_that_are_taken(oracle, groups, caplog) -> None:
    """Told when one is first called."""
    caplog.set_level("INFO")
    for _ in range(3):
        assert asked(oracle, moe_config(), keys(groups)) == (True, None)
    experts, w1, w2 = layer(oracle, SIZES[groups])
    for _ in range(2):
        applied(experts, drawn(1, K).bfloat16(), w1, w2)
    (message,) = caplog.messages
    scales = f"blocks of {SIZES[groups]}" if SIZES[groups] else "rows"
    assert " for 1 rows" in message and (" for 256 rows" in message) == (groups is not ROWS)
    start = f"GemmillExperts takes a layer of 4 experts of 256 x 128, e4m3 weights with scales of {scales}, all in one call: build "
    assert message.startswith(start) and " has sm90a_fusedexp" in message


def test_a_layer_whose_call_fails_stays_vllms(oracle, caplog, monkeypatch) -> None:
    experts, w1, w2 = layer(oracle, 128)
    monkeypatch.setattr(gemmill, "fused_experts", failing)
    for _ in range(2):
        assert applied(experts, drawn(1, K).bfloat16(), w1, w2)[0][0] == "vLLM's"
    assert caplog.messages == [
        "a layer of 4 experts of 256 x 128, e4m3 weights with scales of blocks of 128, all in one call stays with the engine: a call "
        "failed (scales are bf16, not f32)"
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"moe_backend": "triton"},
            "gemmill takes layers of which vLLM chooses the backend, and moe_backend is 'triton'",
        ),
        ({"use_all2all_kernels": True}, "gemmill takes no layer whose tokens or experts travel between ranks"),
        ({"enable_eplb": True}, "gemmill takes no layer whose tokens or experts travel between ranks"),
        ({"is_lora_enabled": True}, "gemmill takes no layer with LoRA or biases here"),
        ({"has_bias": True}, "gemmill takes no layer with LoRA or biases here"),
        ({"swiglu_limit": 7.0}, "gemmill takes gates of silu, gelu, gelu_tanh without limits here"),
        (
            {"activation": SimpleNamespace(value="swigluoai")},
            "gemmill takes gates of silu, gelu, gelu_tanh without limits here",
        ),
        ({"is_act_and_mul": False}, "gemmill takes gates of silu, gelu, gelu_tanh without limits here"),
        ({"hidden_dim": 264}, "rows of "),
        ({"in_dtype": torch.float16}, "has no variant for 1 rows of a layer of 4 experts of 256 x 128"),
    ],
)
def test_layers_that_stay_vllms(oracle, changes, why) -> None:
    takes, reason = asked(oracle, moe_config(**changes), keys(BLOCKS))
    assert not takes and why in reason


def test_scales_that_stay_vllms(oracle) -> None:
    why = "gemmill takes float8_e4m3fn with float32 scales of channels and tokens, or of blocks of 128 or 32"
    static = quant_key((-1, -1)), quant_key((-1, -1))
    zero_points, integers = keys(BLOCKS, symmetric=False), keys(ROWS, dtype=torch.int8)
    for given in (keys(((64, 64), (1, 64))), keys((BLOCKS[0], ROWS[1])), static, zero_points, integers, (None, None)):
        assert asked(oracle, moe_config(), given) == (False, why)
    assert asked(oracle, moe_config(), keys(BLOCKS), "batched") == (False, "vLLM's")


@pytest.mark.parametrize(("blocks", "m"), [(128, 1), (128, 9), (32, 1), (32, 9), (0, 1)])
def test_few_tokens_are_gemmills(oracle, blocks: int, m: int) -> None:
    experts, w1, w2 = layer(oracle, blocks)
    assert experts.expects_unquantized_inputs
    x = drawn(m, K).bfloat16()
    returned, output = applied(experts, x, w1, w2)
    everyone = {e: e for e in range(E)}
    assert returned is None and near(output, wanted(experts, x, w1, w2, blocks, everyone, routed(m)[0]))


def test_experts_of_a_rank_and_weights_on_the_input(oracle) -> None:
    experts, w1, w2 = layer(oracle, 128)
    x, expert_map = drawn(9, K).bfloat16(), torch.tensor([2, -1, 0, -1], dtype=torch.int32)
    _, output = applied(experts, x, w1, w2, expert_map=expert_map, apply_router_weight_on_input=True)
    assert near(output, wanted(experts, x, w1, w2, 128, {0: 2, 2: 0}, torch.ones(9, TOP)))


def test_the_most_tokens_are_gemmills(oracle, monkeypatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(gemmill, "fused_experts", lambda x, *_, **named: taken.append(len(x)))
    experts, w1, w2 = layer(oracle, 128)
    returned, _ = applied(experts, drawn(256, K).bfloat16(), w1, w2)
    assert returned is None and taken == [256]


@pytest.mark.parametrize(("blocks", "m"), [(128, 257), (0, 2)])
def test_many_tokens_are_vllms(oracle, blocks: int, m: int) -> None:
    experts, w1, w2 = layer(oracle, blocks)
    returned, output = applied(experts, drawn(m, K).bfloat16(), w1, w2)
    assert returned[0] == "vLLM's" and len(returned) == 16 and bool(output.isnan().all())


@pytest.mark.parametrize(("blocks", "few"), [(128, 256), (32, 256), (0, 511)])
def test_many_tokens_are_gemmills_in_pieces_where_grouped_gemms_compute_them(
    oracle, apart, monkeypatch, blocks: int, few: int
) -> None:
    taken: list[tuple[int, ...]] = []
    x = (torch.arange(5000.0) // 4096)[:, None].expand(5000, K).bfloat16()
    output = torch.empty_like(x)

    def fused_experts(x: Tensor, *given: Any, out: Tensor, workspace: Tensor, **named: Any) -> None:
        rows = [len(tensor) for tensor in (x, given[4], given[5], out)]
        room = gemmill.fused_experts_workspace(len(x), K, N, TOP, E)
        assert workspace.numel() >= room and len({*rows}) == 1
        taken.append((len(x), int(x[0, 0]), int(out.data_ptr() - output.data_ptr()) // (2 * K)))

    monkeypatch.setattr(gemmill, "fused_experts", fused_experts)
    experts, w1, w2 = layer(oracle, blocks)
    returned, _ = applied(experts, x[:few], w1, w2)
    assert (returned is None) == bool(blocks)
    taken.clear()
    returned, _ = applied(experts, x, w1, w2, output=output)
    assert returned is None and taken == [(4096, 0, 0), (904, 1, 4096)]
    monkeypatch.setattr(whole_experts, "MANY_TOKENS", {})
    returned, _ = applied(experts, x, w1, w2)
    assert returned[0] == "vLLM's"


@pytest.mark.parametrize("by", [[], [DType.E4M3]], ids=["alone", "with grouped GEMMs"])
def test_the_build_says_whether_many_tokens_are_taken(make_manifest, table_of, monkeypatch, by: list[DType]) -> None:
    gemms = (c for c in tiled(Arch.SM90A) if c.operand_dtype in by)
    configs = (*selections.default(Arch.SM90A), *gemms)
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    whole_experts.goes_apart.cache_clear()
    sizes = {"experts": 32, "hidden": 7168, "inner": 2048, "topk": 8}
    for blocks in (128, 32, 0):
        experts = whole_experts.Experts(**sizes, dtype=torch.bfloat16, blocks=blocks)
        assert experts.takes(1) and experts.takes(8192) == bool(by), blocks
    whole_experts.goes_apart.cache_clear()


@pytest.fixture
def flag(modules_of_vllm) -> None:
    """VLLM_BATCH_INVARIANT is set."""
    modules_of_vllm["vllm.envs"].VLLM_BATCH_INVARIANT = True


@pytest.fixture
def gemms(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build with all grouped GEMMs of e4m3."""
    configs = (*selections.default(Arch.SM90A), *(c for c in tiled(Arch.SM90A) if c.operand_dtype is DType.E4M3))
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()


@pytest.mark.parametrize("groups", SIZES)
def test_under_vllms_batch_invariance_a_layer_is_gemmills_for_every_number_of_tokens(
    oracle, gemms, flag, groups, monkeypatch, caplog
) -> None:
    caplog.set_level("INFO")
    taken: list[int] = []
    monkeypatch.setattr(gemmill, "fused_experts", lambda x, *_, **named: taken.append(len(x)))
    assert classes(oracle)[0]._supports_batch_invariance()
    assert asked(oracle, moe_config(), keys(groups)) == (True, None) and holding.holds_here()
    experts, w1, w2 = layer(oracle, SIZES[groups])
    counts = (1, 2, 256, 257, 511, 512, 5000)
    for m in counts:
        assert applied(experts, drawn(m, K).bfloat16(), w1, w2)[0] is None, m
    assert taken == [*counts[:-1], 4096, 904]
    (message,) = caplog.messages
    order = {128: "promoted every 128, ", 32: "promoted every 32, ", 0: ""}[SIZES[groups]]
    assert " for 1 rows" in message and message.endswith(
        f" for 4096 rows; all in the order grouped GEMMs to f32, {order}experts added as bf16, for batch invariance"
    )


def test_under_vllms_batch_invariance_a_layer_without_an_order_is_vllms_for_all(oracle, flag) -> None:
    """Scales of rows have none but that of grouped GEMMs, which this build lacks."""
    takes, reason = asked(oracle, moe_config(), keys(ROWS))
    assert not takes and reason.startswith("batch invariance is asked for, and of ")
    assert asked(oracle, moe_config(), keys(BLOCKS)) == (True, None)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("blocks", [128, 32, 0])
def test_more_tokens_have_no_less_room(oracle, request, blocks: int, many: bool) -> None:
    """vLLM locks the workspace of the most tokens."""
    if many:
        request.getfixturevalue("apart")
    experts, *_ = layer(oracle, blocks)
    tokens = (*range(1, 600), 4095, 4096, 4097, 9000)
    rooms = [experts.workspace_shapes(m, 2 * N, K, TOP, E, E, None, None)[1] for m in tokens]
    sizes = [torch.Size(room).numel() for room in rooms]
    assert sizes == sorted(sizes)


def test_vllm_without_the_function(oracle, monkeypatch, caplog) -> None:
    monkeypatch.delattr(oracle, vllm_fused_experts.CHOOSES[1])
    linear._complained.clear()
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith(
        "vLLM for experts in one call goes on with its own kernels: gemmill cannot serve here (module 'vllm"
    )
