"""gate_up layers in vLLM's compiled graphs: one op with SiLU and codes of a given scale, over weights that its first call packs."""

import importlib
from collections.abc import Callable
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
        "compilation_config": SimpleNamespace(mode=3),
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


def plain(layer: Layer, m: int) -> Tensor:
    """The product, gates then ups, of a layer in plain order."""
    scales = layer.weight_scale.reshape(1, -1) if layer.weight_scale.numel() > 1 else layer.weight_scale
    return gemmill.cutlass_scaled_mm(codes(m), layer.weight, layer.input_scale, scales, BF16)


def of_two_ops(layer: Layer, m: int) -> Tensor:
    """vLLM's codes, of a layer in plain order."""
    out = torch.full((m, N // 2), torch.nan).to(E4M3)
    torch.ops.gemmill.vllm_silu_and_mul_quant(out, plain(layer, m), SCALE)
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
    sizes = [[DimDynamic.DYNAMIC if x is given[0] and not i else DimDynamic.STATIC for i in range(x.dim())] for x in given]
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


def with_silu(layer: Any, a: Tensor, scale: Tensor) -> Tensor:
    x = product(layer, a)
    result = torch.empty((x.shape[0], x.shape[1] // 2), dtype=E4M3)
    op = getattr(getattr(torch.ops, LIBRARY), gate_up.QUANT).default
    made: Tensor = auto_functionalized(op, result=result, input=x, scale=scale)[1]
    return made


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
