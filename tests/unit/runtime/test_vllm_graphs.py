"""vLLM's compiled graphs with gemmill's ops: graphs as its passes give them, over a library of vLLM's names without kernels."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
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
from engines import Platform
from gemmill.compat import linear
from gemmill.compat.vllm import fusion, quant, rewriting
from gemmill.families import quant as quant_family
from gemmill.family import VLLM_PREFIX
from gemmill.registry import REGISTRY
from gemmill.runtime import builds, ops
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.served import serving_report
from gemmill.space.selections import select

VLLM = "graphs_of_vllm"
E4M3 = torch.float8_e4m3fn
K = 512
LEAST, MOST = 1, 8192


@pytest.fixture
def of_vllm(make_manifest, table_of, monkeypatch):
    """vLLM's library, and a build of the default selection's kernels that quantise."""
    configs = REGISTRY.configs_of(quant_family.NAME, select("default").configs)
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    monkeypatch.setattr(quant, "VLLM", VLLM)
    monkeypatch.setattr(quant, "KEY", "CPU")
    linear.forget()
    library = torch.library.Library(VLLM, "FRAGMENT")
    for name in quant.NAMES:
        library.define(BY_NAME[VLLM_PREFIX + name].schema.removeprefix(VLLM_PREFIX))
    library.define("silu_and_mul(Tensor(a!) result, Tensor input) -> ()")
    yield getattr(torch.ops, VLLM)
    library._destroy()


def token(x: Tensor, bound: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """vLLM's codes and scales of tokens, as they stand in a functional graph."""
    made = auto_functionalized(
        getattr(torch.ops, VLLM).dynamic_per_token_scaled_fp8_quant.default,
        result=torch.empty(x.shape, dtype=E4M3),
        input=x,
        scale=torch.empty((x.shape[0], 1), dtype=torch.float32),
        scale_ub=bound,
    )
    return made[1], made[2]


def gated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :half]) * x[..., half:]


def gated_by_op(x: Tensor) -> Tensor:
    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    made: Tensor = auto_functionalized(getattr(torch.ops, VLLM).silu_and_mul.default, result=out, input=x)[1]
    return made


def graph_of(model: Callable[..., Any], *given: Tensor) -> fx.GraphModule:
    """A functional graph of vLLM's: the rows of matrices are symbolic, other sizes are known."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = [[DimDynamic.DYNAMIC, DimDynamic.STATIC] if x.dim() == 2 else [DimDynamic.STATIC] for x in given]
    with mode:
        fakes = [
            mode.from_tensor(
                x, source=ConstantSource(f"x{i}"), symbolic_context=StatelessSymbolicContext(dynamic_sizes=of_one)
            )
            for i, (x, of_one) in enumerate(zip(given, sizes, strict=True))
        ]
        made = make_fx(model, decomposition_table=select_decomp_table())(*fakes)
    made.graph.eliminate_dead_code()
    return made


def fused(made: fx.GraphModule) -> int:
    found: int = rewriting.silu_patterns(lambda: (LEAST, MOST)).apply(made.graph)
    return found


def names(made: fx.GraphModule) -> list[str]:
    """The graph's ops of vLLM and gemmill."""
    called = [
        x.args[0] if x.target is auto_functionalized else x.target for x in made.graph.nodes if x.op == "call_function"
    ]
    return [str(x).removesuffix(".default") for x in called if str(x).startswith((VLLM, "gemmill"))]


def rows(m: int, k: int) -> Tensor:
    return (torch.arange(m * k, dtype=torch.int32).remainder(89).float() / 17 - 2).view(m, k).bfloat16()


def same(found: Any, wanted: Any) -> bool:
    return all(torch.equal(x.float(), y.float()) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("gate", [gated, gated_by_op])
def test_silu_with_a_quantisation_of_tokens_is_one_op(of_vllm, gate) -> None:
    made = graph_of(lambda x: token(gate(x)), rows(5, 2 * K))
    # As in an engine, which checks matches while it traces; there torch raises where a fake tensor's address is asked for.
    with next(iter(made.graph.nodes)).meta["val"].fake_mode, warnings.catch_warnings():
        warnings.filterwarnings("error", message="Accessing the data pointer of FakeTensor")
        assert fused(made) == 1, serving_report()
    made.recompile()
    assert names(made) == ["gemmill.silu_and_mul_per_token_quant"]
    for m in (3, 70):  # another number than the graph was made with
        assert same(made(rows(m, 2 * K)), gemmill.silu_and_mul_per_token_quant(rows(m, 2 * K)))


def ups_first(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return token(torch.nn.functional.silu(x[..., half:]) * x[..., :half])


def used_elsewhere(x: Tensor) -> tuple[Tensor, ...]:
    product = gated(x)
    return *token(product), product


def with_a_bound(x: Tensor) -> tuple[Tensor, Tensor]:
    return token(gated(x), x[0, :1].float())


def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return token(torch.nn.functional.gelu(x[..., :half]) * x[..., half:])


def codes_alone_of_a_third(x: Tensor) -> tuple[Tensor, Tensor]:
    third = x.shape[-1] // 4
    return token(torch.nn.functional.silu(x[..., :third]) * x[..., third : 2 * third])


@pytest.mark.parametrize("model", [ups_first, used_elsewhere, with_a_bound, gelu, codes_alone_of_a_third])
def test_other_products_are_left(of_vllm, model) -> None:
    made = graph_of(model, rows(5, 2 * K))
    assert fused(made) == 0
    assert names(made) == [f"{VLLM}.dynamic_per_token_scaled_fp8_quant"]


def test_ops_of_vllm_become_gemmills(of_vllm) -> None:
    """Both forms: in a wrapper that makes them functional, and plain, as vLLM's last pass leaves norms."""

    def model(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        codes, scales = token(x)
        of_norm, of_norm_scales = torch.empty(x.shape, dtype=E4M3), torch.empty((x.shape[0], 1), dtype=torch.float32)
        own = residual + 0
        norm = of_vllm.rms_norm_dynamic_per_token_quant.default
        made = auto_functionalized(
            norm,
            result=of_norm,
            input=x,
            weight=weight,
            scale=of_norm_scales,
            epsilon=1e-6,
            scale_ub=None,
            residual=own,
        )
        return codes, scales, made[1], made[2], made[3]

    made = graph_of(model, rows(5, K), torch.ones(K).bfloat16(), rows(5, K))
    defunctionalise(made.graph, of_vllm.rms_norm_dynamic_per_token_quant.default)
    assert rewriting.rewrite(made.graph, LEAST, MOST) == 2
    made.recompile()
    assert names(made) == [
        f"gemmill.vllm_{x}" for x in ("dynamic_per_token_scaled_fp8_quant", "rms_norm_dynamic_per_token_quant")
    ]
    x, weight, residual = rows(7, K), torch.ones(K).bfloat16(), rows(7, K)
    found = made(x, weight, residual.clone())
    wanted = gemmill.dynamic_per_token_scaled_fp8_quant(x)
    of_norm, scales = torch.full((7, K), torch.nan).to(E4M3), torch.full((7, 1), torch.nan)
    torch.ops.gemmill.vllm_rms_norm_dynamic_per_token_quant(of_norm, x, weight, scales, 1e-6, None, residual)
    assert same(found, (*wanted, of_norm, scales, residual))
    told = [kind["layer"] for kind in serving_report()["served"]]
    assert told[0] == f"call of dynamic_per_token_scaled_fp8_quant for {K} columns in a compiled graph"


def defunctionalise(graph: fx.Graph, op: Any) -> None:
    """As vLLM's last pass: a plain call, and what it writes in the place of its results."""
    (node,) = [x for x in graph.nodes if x.target is auto_functionalized and x.args[0] is op]
    written = {1: "result", 2: "scale", 3: "residual"}
    with graph.inserting_before(node):
        graph.call_function(op, kwargs=dict(node.kwargs))
    for user in list(node.users):
        user.replace_all_uses_with(node.kwargs[written[user.args[1]]])
        graph.erase_node(user)
    graph.erase_node(node)


def test_a_call_without_a_variant_stays(of_vllm, caplog) -> None:
    made = graph_of(lambda x: token(x), rows(5, K).double())
    assert rewriting.rewrite(made.graph, LEAST, MOST) == 0
    assert names(made) == [f"{VLLM}.dynamic_per_token_scaled_fp8_quant"]
    (left,) = serving_report()["left"]
    assert left["layer"] == f"call of dynamic_per_token_scaled_fp8_quant for {K} columns in a compiled graph"
    assert "float64" in left["why"]


def test_a_call_whose_first_try_fails_stays(of_vllm, monkeypatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("no kernel image")

    made = graph_of(lambda x: token(x), rows(5, K))
    monkeypatch.setattr(rewriting, "_called", fails)
    assert rewriting.rewrite(made.graph, LEAST, MOST) == 0
    (left,) = serving_report()["left"]
    assert "no kernel image" in left["why"]


def test_rows_are_asked_for_that_a_graph_is_compiled_for(of_vllm, monkeypatch) -> None:
    asked: list[rewriting.GraphCall] = []
    monkeypatch.setattr(rewriting, "refusal", lambda call: asked.append(call) or "not today")
    made = graph_of(lambda x: token(x), rows(5, K))
    for least, most, wanted in ((1, 8192, (1, 64, 4096, 8192)), (16, 16, (16,)), (65, 512, (65, 512))):
        rewriting.rewrite(made.graph, least, most)
        assert asked[-1].rows == wanted
    assert [tuple(x.shape) for x in asked[-1].call(65)[1:4]] == [(65, K), (65, K), (65, 1)]


def test_scales_of_columns_are_asked_for_as_they_lie() -> None:
    with FakeTensorMode():
        scales = torch.empty((4, 33), dtype=torch.float32).t()
    operand = rewriting.Operand.of(scales)
    assert operand.at(33, "meta").stride() == scales.stride()


@pytest.fixture
def manager(modules_of_vllm, monkeypatch):
    """gemmill's manager over a stand-in of vLLM's, and what the passes saw."""
    seen: list[str] = []

    class InductorPass:
        @staticmethod
        def hash_source(*texts: object) -> str:
            return f"hash of {len(texts)}"

    class PostGradPassManager:
        def configure(self, config: Any) -> None:
            self.pass_config, self.passes = config.compilation_config.pass_config, []

        def add(self, added: Any) -> None:
            assert isinstance(added, InductorPass)
            self.passes.append(added)

        def __call__(self, graph: fx.Graph) -> None:
            for one in self.passes:
                one(graph)
            seen.append("vLLM")

        def uuid(self) -> str:
            return "vLLM's"

    made = {
        "vllm.compilation": {},
        "vllm.compilation.passes": {},
        "vllm.compilation.passes.inductor_pass": {
            "InductorPass": InductorPass,
            "get_pass_context": lambda: SimpleNamespace(compile_range=SimpleNamespace(start=LEAST, end=MOST)),
        },
        "vllm.compilation.passes.pass_manager": {"PostGradPassManager": PostGradPassManager},
    }
    for name, values in made.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gemmill.compat.vllm.passes", raising=False)
    passes = importlib.import_module("gemmill.compat.vllm.passes")
    yield passes.GemmillPassManager(), seen
    sys.modules.pop("gemmill.compat.vllm.passes")


def config(
    key: str | None = "builds", *, fuses: bool = True, custom: tuple[str, ...] = (), quantised: bool = True
) -> Any:
    return SimpleNamespace(
        additional_config={} if key is None else {"gemmill": key},
        quant_config=object() if quantised else None,
        compilation_config=SimpleNamespace(pass_config=SimpleNamespace(fuse_act_quant=fuses), custom_ops=list(custom)),
    )


@pytest.mark.parametrize(
    ("key", "fuses", "wanted"),
    [
        ("builds", True, ["gemmill.silu_and_mul_per_token_quant", "gemmill.vllm_dynamic_per_token_scaled_fp8_quant"]),
        ("builds", False, 2 * ["gemmill.vllm_dynamic_per_token_scaled_fp8_quant"]),
        (None, True, 2 * [f"{VLLM}.dynamic_per_token_scaled_fp8_quant"]),
    ],
)
def test_the_manager_rewrites_what_the_configuration_asks_for(of_vllm, manager, key, fuses, wanted) -> None:
    own, seen = manager
    own.configure(config(key, fuses=fuses))
    made = graph_of(lambda x: (*token(gated(x)), *token(x)), rows(5, 2 * K))
    own(made.graph)
    made.graph.lint()
    assert (names(made), seen) == (wanted, ["vLLM"])
    assert own.uuid() == f"vLLM's|{key}|hash of 1", "Inductor's cache tells them apart"


@pytest.fixture
def platform(modules_of_vllm, monkeypatch) -> Any:
    monkeypatch.setattr(builds, "find_builds", lambda: [SimpleNamespace(name="0123")])
    monkeypatch.delenv("GEMMILL_VLLM_OPS", raising=False)
    return type(modules_of_vllm["vllm.platforms"].current_platform)


def noted(platform: Any, given: Any) -> Any:
    platform.apply_config_platform_defaults(given)
    return given


def test_the_platform_names_the_manager_and_configurations_name_the_builds(platform, monkeypatch) -> None:
    for _ in range(2):
        fusion.put_before()
    path, _, name = platform.get_pass_manager_cls().rpartition(".")
    assert (path, name) == ("gemmill.compat.vllm.passes", "GemmillPassManager")
    made = noted(platform, config(None))
    assert made.platform == "Cuda" and "0123" in fusion.key_of(made)
    monkeypatch.setenv("GEMMILL_BUILD", "4567")
    other = noted(platform, config(None))
    assert fusion.key_of(other) != fusion.key_of(made), "graphs of one build are not another's"
    monkeypatch.setenv("GEMMILL_TIME_LAYERS", "0")
    untimed = noted(platform, config(None))
    assert fusion.key_of(untimed) != fusion.key_of(other), "nor do graphs without splits serve timed layers"


def test_nothing_is_noted_without_a_build_or_where_graphs_stay(platform, monkeypatch) -> None:
    fusion.put_before()
    monkeypatch.setenv("GEMMILL_VLLM_OPS", "0")
    assert fusion.key_of(noted(platform, config(None))) is None
    monkeypatch.delenv("GEMMILL_VLLM_OPS")
    monkeypatch.setattr(builds, "find_builds", list)
    assert fusion.key_of(noted(platform, config(None))) is None
    object_of_the_user = SimpleNamespace(**vars(config(None)) | {"additional_config": object()})
    assert fusion.key_of(noted(platform, object_of_the_user)) is None


def test_a_platform_with_a_manager_of_its_own_keeps_it(platform) -> None:
    platform.manager = "others.Manager"
    fusion.put_before()
    assert platform.get_pass_manager_cls() == "others.Manager"
    assert fusion.key_of(noted(platform, config(None))) is None


@pytest.mark.parametrize(
    ("setting", "custom", "quantised", "wanted"),
    [
        ("1", (), True, ["+quant_fp8"]),
        ("1", (), False, []),
        ("1", ("-quant_fp8",), True, ["-quant_fp8"]),
        ("1", ("none",), True, ["none"]),
        ("1", ("+rms_norm",), True, ["+rms_norm", "+quant_fp8"]),
        (None, (), True, ["+quant_fp8"]),
        ("0", (), True, []),
    ],
)
def test_vllms_ops_quantise_unless_a_user_says_otherwise(
    platform, monkeypatch, setting, custom, quantised, wanted
) -> None:
    fusion.put_before()
    if setting is not None:
        monkeypatch.setenv("GEMMILL_VLLM_OPS", setting)
    made = noted(platform, config(None, custom=custom, quantised=quantised))
    assert made.compilation_config.custom_ops == wanted


def test_vllm_has_what_is_overridden(manager) -> None:
    """By the record of its release: names and parameters."""
    own, modules = type(manager[0]), VLLM_RECORD["modules"]
    theirs = modules["vllm.compilation.passes.pass_manager"]["PostGradPassManager"]["methods"]
    for method in ("configure", "__call__", "uuid"):
        assert list(inspect.signature(getattr(own, method)).parameters) == names_of(theirs[method])
    platform = modules["vllm.platforms.interface"]
    for method in ("apply_config_platform_defaults", "get_pass_manager_cls"):
        assert list(inspect.signature(getattr(Platform, method).__func__).parameters) == names_of(platform[method])


def names_of(recorded: Any) -> list[str]:
    return [name for name, *_ in recorded["parameters"]]
