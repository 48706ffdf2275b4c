"""vLLM's gate and router of experts in one launch, of few tokens: which calls are gemmill's, against recorded interfaces."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from engines import CLASSES, VLLM
from gemmill.compat import linear
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.compat.vllm import routing
from gemmill.families.routing import selections
from gemmill.runtime import holding, ops
from gemmill.vocab import Arch

E, K, TOP = 16, 64, 4
BASES = {
    "GateLinear": ("GateLinear", "ReplicatedLinear", "LinearBase"),
    "FusedTopKRouter": ("FusedTopKRouter", "BaseRouter", "FusedMoERouter"),
    "MoERunner": ("MoERunner",),
}
LAYER = "router to 4 of 16 experts, by rows of 64 bfloat16 elements"
BY_INVARIANCE = "gemmill takes no router under batch invariance, for it takes few tokens and leaves many to vLLM"


class Op:
    """A stand-in of gemmill's op, whose results are not those that vLLM would have."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.error: str | None = None
        self.results: tuple[Tensor, ...] = ()

    def __call__(
        self, x: Tensor, weight: Tensor, topk: int, *, renormalize: bool = True, is_padding: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        if self.error is not None:
            raise RuntimeError(self.error)
        self.calls.append((x.device.type, len(x)))
        self.asked = weight, topk, renormalize
        logits = x.new_full((len(x), len(weight)), 2.0)
        weights = x.new_full((len(x), topk), 0.5, dtype=torch.float32)
        ids = x.new_full((len(x), topk), 7, dtype=torch.int32)
        self.results = logits, weights, ids if is_padding is None else ids.masked_fill(is_padding[:, None], -1)
        return self.results

    @property
    def rows(self) -> list[int]:
        """The rows of calls of other than meta tensors."""
        return [rows for device, rows in self.calls if device != "meta"]


@pytest.fixture(autouse=True)
def served(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of routers."""
    configs = tuple(selections.default(Arch.SM90A))
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()


@pytest.fixture
def op(monkeypatch) -> Op:
    made = Op()
    monkeypatch.setattr(gemmill, "router_topk", made, raising=False)
    return made


@pytest.fixture
def vllm(modules_of_vllm) -> SimpleNamespace:
    """vLLM's classes, after the plugin was called twice."""
    for _ in range(2):
        vllm_plugin.register()
    return names_of(modules_of_vllm)


def names_of(modules: Any) -> SimpleNamespace:
    found = {name: getattr(modules[module], name) for module, name in (routing.GATE, routing.ROUTER, routing.RUNNER)}
    return SimpleNamespace(**found, module=modules[routing.ROUTER[0]], envs=modules["vllm.envs"])


def layer_of(vllm: SimpleNamespace, *, indices: torch.dtype | None = None, **changes: Any) -> Any:
    """A layer as vLLM 0.33 has it; `changes` are of the gate, the router or the runner, by their names."""
    gate = {"input_size": K, "output_size": E} | {
        k: changes.pop(k) for k in ("bias", "out_dtype", "params_dtype", "return_bias") if k in changes
    }
    router = {"top_k": TOP, "global_num_experts": E} | {
        k: changes.pop(k) for k in ("scoring_func", "renormalize", "eplb_state") if k in changes
    }
    quant_method = SimpleNamespace(is_monolithic=changes.pop("is_monolithic", False), topk_indices_dtype=indices)
    config = SimpleNamespace(is_lora_enabled=changes.pop("is_lora_enabled", False), dp_size=changes.pop("dp_size", 1))
    return vllm.MoERunner(
        layer_name="model.layers.0.mlp.experts",
        moe_config=config,
        router=changes.pop("router", None) or vllm.FusedTopKRouter(**router),
        routed_experts=SimpleNamespace(quant_method=quant_method),
        gate=changes.pop("gate", None) or vllm.GateLinear(**gate),
        **changes,
    )


def rows_of(m: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(m, K, generator=torch.Generator().manual_seed(m)).to(dtype)


def is_vllms(layer: Any, m: int = 5) -> bool:
    """Whether vLLM computes both parts of a call, with its own results."""
    gate, router, x = layer.gate, layer.router, rows_of(m, layer.gate.weight.dtype)
    before = gate.calls, router.calls
    _, ids = layer(x)
    logits = torch.nn.functional.linear(x, gate.weight).float()
    assert torch.equal(ids.long(), logits.topk(TOP).indices) or (gate.calls, router.calls) == before
    return (gate.calls, router.calls) == (before[0] + 1, before[1] + 1)


def test_stand_ins_and_wrappers_have_vllms_parameters(vllm) -> None:
    for of, method in ((vllm.GateLinear, "forward"), (vllm.FusedTopKRouter, "_compute_routing")):
        parameters = inspect.signature(getattr(of, method), follow_wrapped=False).parameters.values()
        found = [
            [p.name, "keyword" if p.kind is p.KEYWORD_ONLY else "positional", p.default is not p.empty]
            for p in parameters
        ]
        assert found == CLASSES[of.__name__]["methods"][method]["parameters"]
    assert VLLM["modules"][routing.ROUTER[0]][routing.PADDING]["parameters"] == [["num_tokens", "positional", False]]
    for name, own in BASES.items():
        known = {given for base in own for given, *_ in CLASSES[base]["methods"]["__init__"]["parameters"]}
        assert {*inspect.signature(getattr(vllm, name).__init__).parameters} <= known, name


def test_attributes_that_are_read_are_vllms() -> None:
    read = {
        "GateLinear": {"output_size", "bias", "is_unquantized", "out_dtype", "return_bias"},
        "FusedTopKRouter": {"top_k", "renormalize", "scoring_func", "eplb_state"},
        "MoERunner": {"gate", "router", "moe_config", "_fse_fuse_gate"},
    }
    for name, attributes in read.items():
        assert attributes <= {given for base in BASES[name] for given in CLASSES[base]["attributes"]}, name
    assert "property" in CLASSES["MoERunner"]["methods"]["is_monolithic"]["decorators"]
    assert "is_lora_enabled" in CLASSES["FusedMoEConfig"]["fields"]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("m", [1, 256])
def test_few_tokens_are_gemmills(vllm, op, m: int, renormalize: bool) -> None:
    layer = layer_of(vllm, renormalize=renormalize)
    for _ in range(2):
        weights, ids = layer(rows_of(m))
        assert weights is op.results[1] and ids is op.results[2]
    assert (layer.gate.calls, layer.router.calls) == (0, 0)
    assert op.asked[1:] == (TOP, renormalize) and torch.equal(op.asked[0], layer.gate.weight)
    assert op.rows == [m] * 3  # a trial first


def test_the_op_computes_as_vllm(vllm) -> None:
    """By the reference, on CPU tensors."""
    if not hasattr(gemmill, "router_topk"):
        pytest.skip("this checkout has no router_topk")
    layer = layer_of(vllm)
    weights, ids = layer(x := rows_of(5))
    assert (layer.gate.calls, layer.router.calls) == (0, 0)
    logits = torch.nn.functional.linear(x, layer.gate.weight)
    wanted, experts = layer.router._compute_routing(x, logits, None)
    assert torch.equal(ids, experts) and torch.allclose(weights, wanted, atol=1e-3)


def test_a_gate_returns_logits_as_vllms_does(vllm, op) -> None:
    layer = layer_of(vllm)
    logits, bias = layer.gate(rows_of(3))
    assert logits is op.results[0] and bias is None
    layer = layer_of(vllm, return_bias=False)
    assert layer.gate(rows_of(3)) is op.results[0] and layer.gate.calls == 0


def test_many_tokens_are_vllms(vllm, op) -> None:
    layer = layer_of(vllm)
    assert is_vllms(layer, 257) and op.rows == [256]  # the trial alone
    assert not is_vllms(layer, 256) and is_vllms(layer, 257) and op.rows == [256, 256]


@pytest.mark.parametrize("x", [rows_of(6).view(2, 3, K), rows_of(0), rows_of(6).half()], ids=["3-d", "none", "of f16"])
def test_calls_that_are_vllms_leave_the_layer_to_gemmill(vllm, op, monkeypatch, x: Tensor) -> None:
    layer = layer_of(vllm)
    assert not is_vllms(layer)
    asked, computed = len(op.calls), torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: computed(x, weight.to(x.dtype)))
    layer.gate(x)
    assert layer.gate.calls == 1 and len(op.calls) == asked
    assert not is_vllms(layer)


def test_other_logits_are_routed_by_vllm(vllm, op) -> None:
    """As after a dispatch between ranks: equal ones too, and the kept results are forgotten."""
    layer = layer_of(vllm)
    assert not is_vllms(layer)
    layer._maybe_dispatch = lambda hidden_states, router_logits: (hidden_states, router_logits.clone())
    weights, ids = layer(rows_of(5))
    assert layer.gate.calls == 0 and layer.router.calls == 1
    assert weights is not op.results[1] and ids.tolist() != op.results[2].tolist()
    layer.router._compute_routing(rows_of(5), op.results[0], None)
    assert layer.router.calls == 2


def test_results_serve_one_call(vllm, op) -> None:
    layer = layer_of(vllm)
    layer(rows_of(5))
    assert layer.router._gemmill is None
    layer.router._compute_routing(rows_of(5), op.results[0], None)
    assert layer.router.calls == 1


@pytest.mark.parametrize("kind", [None, torch.int32, torch.int64, torch.uint32])
def test_experts_have_the_dtype_that_vllm_asks_for(vllm, op, kind: torch.dtype | None) -> None:
    layer = layer_of(vllm, indices=kind)
    _, ids = layer(rows_of(5))
    assert layer.router.calls == 0 and ids.dtype is (kind or torch.int32)
    assert ids.tolist() == [[7] * TOP] * 5


@pytest.mark.parametrize(("kind", "nobody"), [(None, -1), (torch.int64, -1), (torch.uint32, 2**32 - 1)])
def test_rows_that_pad_go_to_no_expert(modules_of_vllm, op, kind: torch.dtype | None, nobody: int) -> None:
    """As vLLM's kernel writes them under VLLM_MOE_SKIP_PADDING, its default."""
    vllm, mask = names_of(modules_of_vllm), torch.tensor([False, False, True, True])
    vars(vllm.module)[routing.PADDING] = lambda num_tokens: mask[:num_tokens]
    vllm_plugin.register()
    layer = layer_of(vllm, indices=kind)
    weights, ids = layer(rows_of(3))
    assert ids.tolist() == [[7] * TOP, [7] * TOP, [nobody] * TOP] and weights.tolist() == [[0.5] * TOP] * 3
    assert (layer.gate.calls, layer.router.calls) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scoring_func": "sigmoid"}, "gemmill routes by softmax, and scoring_func is 'sigmoid'"),
        ({"eplb_state": object()}, "gemmill takes no layer whose experts or logits travel between ranks"),
        ({"dp_size": 2}, "gemmill takes no layer whose experts or logits travel between ranks"),
        ({"is_lora_enabled": True}, "gemmill takes no gate with LoRA"),
        ({"is_monolithic": True}, "vLLM gives this layer's logits to no router"),
        ({"shared_expert_gate": torch.nn.Linear(K, 1)}, "vLLM gives this layer's logits to no router"),
        ({"bias": True}, "gemmill takes gates of bfloat16 or float16 without biases"),
        (
            {"out_dtype": torch.float32},
            "gemmill gives logits the dtype of the gate's weight, and out_dtype is torch.float32",
        ),
    ],
)
def test_layers_that_stay_vllms(vllm, op, caplog, changes: dict[str, Any], why: str) -> None:
    """Told once."""
    caplog.set_level("INFO")
    layer = layer_of(vllm, **changes)
    assert is_vllms(layer) and is_vllms(layer) and op.calls == []
    assert caplog.messages == [f"a {LAYER} stays with the engine: {why}"]


def test_gates_of_float32_and_quantised_ones_stay_vllms(vllm, op, caplog) -> None:
    caplog.set_level("INFO")
    layer = layer_of(vllm, params_dtype=torch.float32)
    quantised = layer_of(vllm)
    quantised.gate.is_unquantized = False
    assert is_vllms(layer) and is_vllms(quantised) and op.calls == []
    assert [m.partition(": ")[2] for m in caplog.messages] == [
        "gemmill takes gates of bfloat16 or float16 without biases"
    ] * 2


def test_a_gate_that_vllm_has_wrapped_stays_vllms(vllm, op, caplog) -> None:
    """As with LoRA, which adds to logits in place."""
    caplog.set_level("INFO")
    layer = layer_of(vllm)
    gate = layer.gate
    layer.gate = torch.nn.Sequential(gate)
    layer(rows_of(5))
    assert (gate.calls, layer.router.calls, op.calls) == (1, 1, [])
    assert caplog.messages == [f"a {LAYER} stays with the engine: gemmill takes no gate with LoRA"]


def test_a_gate_with_a_hook_is_vllms_as_long_as_it_has_it(vllm, op) -> None:
    layer = layer_of(vllm)
    hook = layer.gate.register_forward_hook(lambda module, given, found: found)
    assert is_vllms(layer) and op.calls == []
    hook.remove()
    assert not is_vllms(layer)


def test_subclasses_and_layers_without_a_gate_are_told_nothing(vllm, op) -> None:
    gates, routers = (type("Derived", (of,), {}) for of in (vllm.GateLinear, vllm.FusedTopKRouter))
    for changes in ({"gate": gates(K, E)}, {"router": routers(TOP, E)}):
        layer = layer_of(vllm, **changes)
        assert layer.gate._gemmill is None and is_vllms(layer)
    named = {"layer_name": "", "moe_config": None, "routed_experts": None}
    vllm.MoERunner(**named, router=vllm.FusedTopKRouter(TOP, E))
    assert vllm.GateLinear._gemmill is None and op.calls == []


def test_a_gate_without_a_runner_is_vllms(vllm, op) -> None:
    gate = vllm.GateLinear(K, E)
    gate(rows_of(5))
    assert gate.calls == 1 and op.calls == []


@pytest.mark.parametrize(
    ("experts", "hidden", "most"),
    [
        (128, 2048, 256),
        (8, 2048, 256),
        (8, 4096, 192),
        (129, 2048, 192),
        (256, 2048, 192),
        (256, 4096, 0),
        (8, 4104, 0),
    ],
)
def test_tokens_that_gemmill_takes_follow_from_passes_over_weights(experts: int, hidden: int, most: int) -> None:
    assert routing.most_tokens(experts, hidden) == most


def test_a_gate_of_many_passes_stays_vllms(vllm, op, caplog, monkeypatch) -> None:
    caplog.set_level("INFO")
    layer = layer_of(vllm)
    monkeypatch.setattr(routing, "_COLUMNS_OF_PASS", K // 3)
    assert is_vllms(layer) and op.calls == []
    why = "F.linear is faster for more than 128 experts of 4096 columns or 256 of 2048"
    assert caplog.messages == [f"a {LAYER} stays with the engine: {why}"]


def test_of_two_passes_fewer_tokens_are_gemmills(vllm, op, monkeypatch) -> None:
    monkeypatch.setattr(routing, "_COLUMNS_OF_PASS", K // 2)
    layer = layer_of(vllm)
    assert not is_vllms(layer, 192) and is_vllms(layer, 193) and not is_vllms(layer, 1)


def test_the_module_stays_a_tree(vllm, op) -> None:
    """A gate keeps its runner and router, and has no module or parameter more."""
    layer = layer_of(vllm)
    assert [*dict(layer.named_modules())] == ["", "gate"] and [*layer.state_dict()] == ["gate.weight"]
    layer(rows_of(5))
    assert layer.gate._gemmill.runner is None


@pytest.mark.parametrize("by", ["VLLM_BATCH_INVARIANT", "gemmill"])
def test_under_batch_invariance_layers_are_vllms(vllm, op, caplog, by: str) -> None:
    caplog.set_level("INFO")
    layer = layer_of(vllm)
    if by == "gemmill":
        holding.hold_everywhere(True)
    else:
        vllm.envs.VLLM_BATCH_INVARIANT = True
    assert is_vllms(layer) and op.calls == []
    assert caplog.messages == [f"a {LAYER} stays with the engine: {BY_INVARIANCE}"]


def test_a_layer_whose_first_call_fails_stays_vllms(vllm, op, caplog) -> None:
    op.error = "x has strides (1, 64),\nnot rows"
    layer = layer_of(vllm)
    assert is_vllms(layer)
    op.error = None
    assert is_vllms(layer) and op.calls == []
    assert caplog.messages == [
        f"a {LAYER} stays with the engine: its first call of meta tensors, as torch.compile's fake ones, failed "
        "(x has strides (1, 64), not rows)"
    ]


def test_a_layer_of_which_a_later_call_fails_stays_vllms(vllm, op, caplog) -> None:
    layer, other = layer_of(vllm), layer_of(vllm)
    assert not is_vllms(layer) and not is_vllms(other)
    op.error = "CUDA error:\nout of memory"
    assert is_vllms(layer)
    op.error = None
    assert is_vllms(layer) and not is_vllms(other)
    assert caplog.messages == [
        f"a {LAYER} stays with the engine: gemmill cannot serve here (CUDA error: out of memory)"
    ]


def test_a_build_without_routers_leaves_layers_to_vllm(vllm, op, caplog, monkeypatch) -> None:
    caplog.set_level("INFO")
    missing = SimpleNamespace(entry=None, refused=None)
    monkeypatch.setattr(ops, "choice_of", lambda name, *given: missing)
    assert is_vllms(layer_of(vllm)) and is_vllms(layer_of(vllm)) and op.calls == []
    (message,) = caplog.messages
    assert f" has no variant for 1 rows of a {LAYER}" in message


def test_layers_that_are_taken_are_told_once(vllm, op, caplog) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        assert not is_vllms(layer_of(vllm))
    (message,) = caplog.messages
    assert message.startswith(f"router_topk takes a {LAYER}: build ")
    assert " for 1 rows, " in message and message.endswith(" for 256 rows; it serves calls of at most 256 tokens")
    (row,) = gemmill.serving_report()["served"]
    assert (row["layer"], row["by"], row["rows"]) == (LAYER, "router_topk", "calls of at most 256 tokens")


def test_traced_calls_are_vllms(vllm, op, monkeypatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer = layer_of(vllm)
    assert is_vllms(layer) and op.calls == []


def test_wrapping_twice_changes_nothing(vllm, op) -> None:
    methods = [vllm.GateLinear.forward, vllm.FusedTopKRouter._compute_routing, vllm.MoERunner.__init__]
    routing.put_before()
    assert methods == [vllm.GateLinear.forward, vllm.FusedTopKRouter._compute_routing, vllm.MoERunner.__init__]
    assert not any(hasattr(method.__wrapped__, "__wrapped__") for method in methods)
    assert not is_vllms(layer_of(vllm)) and op.rows == [5, 5]


def test_the_setting_leaves_vllm_as_it_is(modules_of_vllm, op, monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_VLLM", "0")
    vllm_plugin.register()
    vllm = names_of(modules_of_vllm)
    assert not hasattr(vllm.GateLinear, "_gemmill") and not hasattr(vllm.MoERunner.__init__, "__wrapped__")
    assert is_vllms(layer_of(vllm)) and op.calls == []


def test_vllm_without_the_function(modules_of_vllm, op, monkeypatch, caplog) -> None:
    vllm = names_of(modules_of_vllm)
    monkeypatch.delattr(vllm.module, routing.PADDING)
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith(
        "vLLM for routers of experts goes on with its own kernels: gemmill cannot serve here (module 'vllm"
    )
    assert not hasattr(vllm.GateLinear, "_gemmill") and is_vllms(layer_of(vllm))
