"""gate_up layers in vLLM's compiled graphs: one op with SiLU and codes of a given scale, over weights that its first call packs."""

import importlib
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import gemmill
from builds import TableOnly
from engines import VLLM as VLLM_RECORD
from engines import fp8_config
from gemmill.compat import invariance, linear
from gemmill.compat.vllm import contest, gate_up, quant
from gemmill.families import gated_mm, scaled_mm
from gemmill.families import quant as quant_family
from gemmill.formats.gate_up import pack_gate_up
from gemmill.quantize import prepack_gate_up
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.runtime.served import serving_report
from gemmill.space.selections import select

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
LIBRARY = "gate_up_of_vllm"
N, K = 96, 64
KIND = linear.Linear(n=N, k=K, codes=E4M3, out_dtype=BF16)
MODES = Enum("CompilationMode", VLLM_RECORD["modules"]["vllm.config.compilation"]["CompilationMode"]["members"])
PARAMETERS = ["weight", "weight_scale", "input_scale", "input_scale_ub"]


@pytest.fixture
def of_vllm(make_manifest, table_of, monkeypatch, modules_of_vllm):
    """vLLM's library of one op, which counts its calls, its configuration, and a build of the default selection's kernels."""
    names = (quant_family.NAME, gated_mm.NAME, scaled_mm.NAME)
    configs = [one for name in names for one in REGISTRY.configs_of(name, select("default").configs)]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    monkeypatch.setattr(quant, "VLLM", LIBRARY)
    monkeypatch.setattr(gate_up, "_orders", {})
    monkeypatch.setattr(gate_up, "_worth", {})
    linear.forget()
    contest.forget()
    library = torch.library.Library(LIBRARY, "FRAGMENT")
    library.define(f"{gate_up.QUANT}(Tensor(a!) result, Tensor input, Tensor scale) -> ()")
    given = SimpleNamespace(config=config(), calls=0)

    def silu(result: Tensor, x: Tensor, scale: Tensor) -> None:
        given.calls += 1
        torch.ops.gemmill.vllm_silu_and_mul_quant(result, x, scale)

    library.impl(gate_up.QUANT, silu, "CPU")
    modules_of_vllm["vllm.config"].get_current_vllm_config_or_none = lambda: given.config
    yield given
    library._destroy()


def config(**other: Any) -> Any:
    fields = {
        "additional_config": {"gemmill": "builds"},
        "lora_config": None,
        "compilation_config": SimpleNamespace(mode=MODES.VLLM_COMPILE),
        "offload_config": SimpleNamespace(
            uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0)
        ),
    }
    return SimpleNamespace(**fields | other)


class Layer:
    """A gate_up layer of vLLM's after its loading, in plain order."""

    def __init__(self, seed: int = 0, widths: tuple[int, ...] = (N // 2, N // 2), channel: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        codes = torch.randint(-8, 9, (N, K), generator=generator).float()
        self.weight = codes.to(E4M3).t()
        self.weight_scale = torch.rand((N, 1) if channel else (1,), generator=generator) / 64 + 1 / 64
        self.input_scale = torch.tensor(0.5)
        self.logical_widths, self.bias = list(widths), None

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.input_scale, self.weight_scale

    def order(self, known: gate_up.Order | None = None) -> gate_up.Order | None:
        return gate_up.order_of(known, self, KIND, *self.operands)


def codes(m: int) -> Tensor:
    return (torch.arange(m * K, dtype=torch.int32).remainder(13).float() - 6).view(m, K).to(E4M3)


SCALE = torch.tensor(0.03)


def plain(layer: Layer, m: int, dtype: torch.dtype = BF16) -> Tensor:
    """The product, gates then ups, of a layer in plain order."""
    scales = layer.weight_scale.reshape(1, -1) if layer.weight_scale.numel() > 1 else layer.weight_scale
    return gemmill.cutlass_scaled_mm(codes(m), layer.weight, layer.input_scale, scales, dtype)


def of_two_ops(layer: Layer, m: int, of_f16: bool = False) -> Tensor:
    """vLLM's codes, of a layer in plain order."""
    out = torch.full((m, N // 2), torch.nan).to(E4M3)
    torch.ops.gemmill.vllm_silu_and_mul_quant(out, plain(layer, m, torch.float16 if of_f16 else BF16), SCALE)
    return out


def of_one_op(layer: Layer, m: int) -> Tensor:
    """gemmill's codes, of a layer in plain order: those of the value that vLLM's op rounds to bf16 twice."""
    packed = prepack_gate_up(layer.weight.t(), layer.weight_scale)
    return gemmill.scaled_mm_act_quant(
        codes(m), packed.b, layer.input_scale, packed.scales, static_scale=SCALE.reshape(1)
    )[0]


def product(layer: Layer, a: Tensor) -> Tensor:
    return gate_up.product(a, layer.weight, layer.input_scale, layer.weight_scale, BF16, str(KIND))


def graph_of(model: Callable[..., Any], layer: Layer) -> fx.GraphModule:
    """A functional graph of vLLM's, of any number of rows and the layer's tensors."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    given = (codes(5), *layer.operands, SCALE)
    sizes = [
        [DimDynamic.DYNAMIC if x is given[0] and not i else DimDynamic.STATIC for i in range(x.dim())] for x in given
    ]
    with mode:
        fakes = [
            mode.from_tensor(
                x, source=ConstantSource(f"x{i}"), symbolic_context=StatelessSymbolicContext(dynamic_sizes=of_one)
            )
            for i, (x, of_one) in enumerate(zip(given, sizes, strict=True))
        ]

        def traced(a: Tensor, weight: Tensor, input_scale: Tensor, weight_scale: Tensor, scale: Tensor) -> Any:
            of = SimpleNamespace(weight=weight, input_scale=input_scale, weight_scale=weight_scale)
            return model(of, a, scale)

        made = make_fx(traced, decomposition_table=select_decomp_table())(*fakes)
    made.graph.eliminate_dead_code()
    return made


def silu(x: Tensor, scale: Tensor) -> Tensor:
    """vLLM's op, as it stands in a functional graph."""
    result = torch.empty((x.shape[0], x.shape[1] // 2), dtype=E4M3)
    op = getattr(getattr(torch.ops, LIBRARY), gate_up.QUANT).default
    made: Tensor = auto_functionalized(op, result=result, input=x, scale=scale)[1]
    return made


def with_silu(layer: Any, a: Tensor, scale: Tensor) -> Tensor:
    return silu(product(layer, a), scale)


def run(made: fx.GraphModule, layer: Layer, m: int) -> Any:
    made.recompile()
    return made(codes(m), *layer.operands, SCALE)


def called(made: fx.GraphModule) -> list[str]:
    targets = [
        x.args[0] if x.target is auto_functionalized else x.target for x in made.graph.nodes if x.op == "call_function"
    ]
    return [str(x).removesuffix(".default") for x in targets if str(x).startswith((LIBRARY, "gemmill"))]


@pytest.mark.parametrize("channel", [True, False])
def test_a_layer_and_its_silu_are_one_op(of_vllm, channel: bool) -> None:
    layer, untouched = Layer(channel=channel), Layer(channel=channel)
    order = layer.order()
    assert order is not None and not order.is_kept
    made = graph_of(with_silu, layer)
    assert gate_up.fuse(made.graph) == 1
    made.graph.eliminate_dead_code()
    made.graph.lint()
    assert called(made) == ["gemmill_engines.gate_up_silu_codes"]
    for m in (3, 70):
        found, of_vllms = run(made, layer, m), of_two_ops(untouched, m)
        assert torch.equal(found.float(), of_one_op(untouched, m).float())
        assert int((found.view(torch.int8).int() - of_vllms.view(torch.int8).int()).abs().max()) == 1, "next codes"
    assert of_vllm.calls == 0 and order.is_packed
    assert torch.equal(layer.weight.t().float(), pack_gate_up(untouched.weight.t(), "gate_up").float())
    assert torch.equal(product(layer, codes(7)), plain(untouched, 7)), "another reader has gates, then ups"
    (told,) = serving_report()["served"]
    assert (told["layer"], told["by"]) == (str(order.layer), "scaled_mm_act_quant")


def read_elsewhere(layer: Any, a: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    x = product(layer, a)
    return silu(x, scale), x + 1


def of_f16(layer: Any, a: Tensor, scale: Tensor) -> Tensor:
    operands = a, layer.weight, layer.input_scale, layer.weight_scale
    return silu(gate_up.product(*operands, torch.float16, str(KIND)), scale)


def twice(layer: Any, a: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    x = product(layer, a)
    return silu(x, scale), silu(x, scale)


@pytest.mark.parametrize("model", [read_elsewhere, of_f16, twice])
def test_a_product_with_other_readers_stays_an_op(of_vllm, model, caplog) -> None:
    layer, untouched = Layer(), Layer()
    order = layer.order()
    made = graph_of(model, layer)
    before = called(made)
    assert gate_up.fuse(made.graph) == 0 and called(made) == before
    found = run(made, layer, 3)
    assert torch.equal(
        (found if model is of_f16 else found[0]).float(), of_two_ops(untouched, 3, model is of_f16).float()
    )
    assert not order.is_packed and torch.equal(layer.weight.float(), untouched.weight.float())
    (left,) = serving_report()["left"]
    assert left == {
        "layer": f"product of a {KIND}",
        "why": "its graph has other readers of gates and ups than SiLU with a given scale, so it stays an op of its own",
    }


def fused_call(layer: Layer, m: int) -> Tensor:
    operands = codes(m), layer.weight, layer.input_scale, layer.weight_scale
    made: Tensor = gate_up.product_silu_codes(*operands, SCALE, str(KIND))
    return made


def test_weights_of_a_captured_product_stay_plain(of_vllm, monkeypatch) -> None:
    """The captured kernels would read packed weights as plain ones."""
    layer, untouched = Layer(), Layer()
    order = layer.order()
    monkeypatch.setattr(gate_up, "_captures", lambda b: True)
    assert torch.equal(product(layer, codes(3)), plain(untouched, 3)) and order.is_kept
    monkeypatch.setattr(gate_up, "_captures", lambda b: False)
    assert torch.equal(fused_call(layer, 3).float(), of_two_ops(untouched, 3).float())
    assert of_vllm.calls == 1 and not order.is_packed
    assert torch.equal(layer.weight.float(), untouched.weight.float())


def test_a_first_call_that_is_captured_packs_nothing(of_vllm, monkeypatch) -> None:
    """The graph would pack the weights again at each replay."""
    layer, untouched = Layer(), Layer()
    order = layer.order()
    monkeypatch.setattr(gate_up, "_captures", lambda b: True)
    assert torch.equal(fused_call(layer, 3).float(), of_two_ops(untouched, 3).float())
    assert order.is_kept and torch.equal(layer.weight.float(), untouched.weight.float())


def test_reloaded_weights_are_packed_again(of_vllm) -> None:
    """As vLLM does: processed at another address, then copied to where captured graphs read them."""
    layer, other = Layer(), Layer(seed=1)
    order = layer.order()
    fused_call(layer, 1)
    assert other.order(order) is order and order.is_packed
    assert torch.equal(fused_call(other, 3).float(), of_one_op(Layer(seed=1), 3).float())
    layer.weight.copy_(other.weight)
    layer.weight_scale.copy_(other.weight_scale)
    assert torch.equal(fused_call(layer, 3).float(), of_one_op(Layer(seed=1), 3).float())
    assert torch.equal(product(layer, codes(3)), plain(Layer(seed=1), 3))


def test_another_engine_at_the_same_address_has_an_order_of_its_own(of_vllm) -> None:
    layer = Layer()
    first = layer.order()
    fused_call(layer, 1)
    layer.weight.copy_(Layer(seed=1).weight)
    layer.weight_scale.copy_(Layer(seed=1).weight_scale)
    second = layer.order()
    assert second is not first and not second.is_packed
    assert torch.equal(fused_call(layer, 3).float(), of_one_op(Layer(seed=1), 3).float())


def test_a_graph_of_another_process_serves_weights_that_stay_plain(of_vllm) -> None:
    """Where that process found the one op faster, and this one does not."""
    layer = Layer()
    assert torch.equal(fused_call(layer, 3).float(), of_two_ops(layer, 3).float())
    assert of_vllm.calls == 1


def test_weights_that_have_moved_are_refused(of_vllm) -> None:
    layer = Layer()
    assert layer.order() is not None
    fused_call(layer, 1)
    layer.weight = layer.weight.t().clone().t()
    for call in (lambda: fused_call(layer, 3), lambda: product(layer, codes(3))):
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value) == (
            f"weights of [K, N] = [{K}, {N}] lie where gemmill has not seen a layer's, and weights like them are in the order of gated GEMMs: "
            "set GEMMILL_VLLM_OPS=0 if the engine moves weights after it has loaded them"
        )


def without(layer: Layer, **fields: Any) -> Layer:
    for name, value in fields.items():
        setattr(layer, name, value)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Layer(widths=(N // 3,) * 3),
        lambda: Layer(widths=(N // 2 + 16, N // 2 - 16)),
        lambda: Layer(widths=(N,)),
        lambda: without(Layer(), bias=torch.zeros(N)),
        lambda: without(Layer(), logical_widths=None),
        lambda: without(Layer(), weight=Layer().weight.contiguous()),
    ],
)
def test_other_layers_are_left(of_vllm, layer) -> None:
    assert layer().order() is None and not gate_up._orders


@pytest.mark.parametrize(
    "other",
    [
        None,
        {"additional_config": {}},
        {"lora_config": object()},
        {"compilation_config": SimpleNamespace(mode=MODES.NONE)},
        {
            "offload_config": SimpleNamespace(
                uva=SimpleNamespace(cpu_offload_gb=1), prefetch=SimpleNamespace(offload_group_size=0)
            )
        },
    ],
)
def test_layers_are_left_where_vllm_compiles_no_such_graph(of_vllm, other) -> None:
    of_vllm.config = None if other is None else config(**other)
    assert Layer().order() is None


def test_layers_are_left_under_batch_invariance(of_vllm, monkeypatch) -> None:
    monkeypatch.setattr(invariance, "vllm_asks", lambda: True)
    assert Layer().order() is None


def test_a_build_without_a_kernel_leaves_the_layer(of_vllm, make_manifest, table_of, monkeypatch) -> None:
    configs = REGISTRY.configs_of(scaled_mm.NAME, select("default").configs)
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    assert Layer().order() is None
    (left,) = serving_report()["left"]
    assert left["layer"] == f"gate_up layer of N x K = {N} x {K}, FP8, with SiLU and codes of a given scale"


ONE_FASTER = {1: (30.0, 29.9), 16: (27.6, 29.5), 64: (31.6, 32.0), 256: (60.3, 60.1), 4096: (722.0, 810.0)}


@pytest.mark.parametrize(
    ("times", "serves"),
    [
        (ONE_FASTER, True),
        (ONE_FASTER | {256: (66.0, 60.1)}, False),
        (dict.fromkeys(contest.TIMED_ROWS, (10.0, 9.9)), False),
    ],
)
def test_the_one_op_serves_where_it_takes_less_time(of_vllm, monkeypatch, times, serves: bool) -> None:
    asked = []
    monkeypatch.setattr(contest, "can_time", lambda weight: True)
    monkeypatch.setattr(gate_up, "_times_us", lambda like, kind, rows, *operands: asked.append(rows) or times[rows])
    found = [Layer().order() is not None for _ in range(2)]
    assert found == [serves, serves] and asked == list(contest.TIMED_ROWS), "timed once for a shape"
    told = [left["why"] for left in serving_report()["left"]]
    assert len(told) == (not serves)
    assert all(why.startswith("a GEMM and a second op take less time (us of one op and of two at 1: ") for why in told)


def test_a_time_that_fails_leaves_the_layer(of_vllm, monkeypatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("no events")

    monkeypatch.setattr(contest, "can_time", lambda weight: True)
    monkeypatch.setattr(gate_up, "_times_us", fails)
    assert Layer().order() is None
    (left,) = serving_report()["left"]
    assert left["why"] == "gemmill cannot serve here (no events)"


def test_both_ways_are_timed_by_calls_that_pass(of_vllm, monkeypatch) -> None:
    """Events are a GPU's: here each call runs once."""
    monkeypatch.setattr(contest, "can_time", lambda weight: True)
    ran = []

    def shortest_us(ours: Callable[[], Any], theirs: Callable[[], Any], **named: Any) -> tuple[float, float]:
        found = ours()[0], theirs()
        ran.append(tuple(codes.shape for codes in found))
        assert all(codes.float().abs().max() <= 1 for codes in found), "a large gate takes a slower reciprocal"
        return 1.0, 2.0

    monkeypatch.setattr(contest, "shortest_us", shortest_us)
    assert Layer().order() is not None
    assert ran == [((rows, N // 2), (rows, N // 2)) for rows in contest.TIMED_ROWS]


def test_the_plugin_compiles_a_layer_to_the_op(of_vllm, monkeypatch) -> None:
    """And an eager call of packed weights gets gates, then ups."""
    kernels = importlib.import_module("gemmill.compat.vllm.kernels")
    static = SimpleNamespace(row=-1, col=-1, is_per_tensor=lambda: True)
    given = fp8_config(shape=(N, K))
    given.activation_quant_key = SimpleNamespace(scale=SimpleNamespace(static=True, group_shape=static))
    kernel, layer, untouched = kernels.GemmillFP8Linear(given, PARAMETERS), Layer(), Layer()
    kernel.process_weights_after_loading(layer)
    assert kernel._order is not None

    def call(a: Tensor) -> Tensor:
        return kernel.apply_scaled_mm(
            A=a, B=layer.weight, out_dtype=BF16, As=layer.input_scale, Bs=layer.weight_scale, bias=None, output_shape=[3, N]
        )  # fmt: skip

    graphs = []

    def backend(graph: fx.GraphModule, inputs: object) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    assert torch.equal(call(codes(3)), plain(untouched, 3))
    assert torch.equal(torch.compile(call, backend=backend, fullgraph=True)(codes(3)), plain(untouched, 3))
    assert graphs == [["gemmill_engines.gate_up.default"]]
    fused_call(layer, 1)
    assert kernel._order.is_packed and torch.equal(call(codes(3)), plain(untouched, 3))
