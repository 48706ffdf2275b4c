"""The plugins of serving engines, against what was recorded of a release of each (tools/record_engines.py)."""

import importlib
import importlib.metadata
import inspect
import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import make_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import gemmill
from gemmill.compat import linear, sglang_plugin, vllm_plugin
from gemmill.compat.linear import Linear
from gemmill.manifest import ManifestError
from gemmill.runtime import ops

HERE = Path(__file__).parent
E4M3 = torch.float8_e4m3fn
_SCALED = "vllm.model_executor.kernels.linear.scaled_mm"


def recorded(name: str) -> dict[str, Any]:
    return json.loads((HERE / "engines" / name).read_text())


VLLM, SGLANG = recorded("vllm-0.33.0.json"), recorded("sglang-0.5.23.json")
LINEAR = VLLM["modules"]["vllm.model_executor.kernels.linear"]
CLASSES = {name: of for module in VLLM["modules"].values() for name, of in module.items() if "methods" in of}


def stand_in(name: str, base: type) -> type:
    """A class with the recorded methods, of which those that are abstract must be given."""
    methods = {
        method: staticmethod(_missing(method)) if "staticmethod" in of["decorators"] else _missing(method)
        for method, of in CLASSES[name]["methods"].items()
        if method != "__init__"
    }
    abstract = {method for method, of in CLASSES[name]["methods"].items() if "abstractmethod" in of["decorators"]}
    return type(name, (base,), methods | {"_abstract": getattr(base, "_abstract", set()) - set(methods) | abstract})


def _missing(name: str) -> Callable[..., Any]:
    def missing(*given: object, **named: object) -> Any:
        raise NotImplementedError(f"vLLM's {name}")

    return missing


class Base:
    """What all of vLLM's kernels do when they are made."""

    def __init__(self, config: Any, layer_param_names: Any = None) -> None:
        self.config, self.layer_param_names = config, layer_param_names


@pytest.fixture
def vllm(monkeypatch) -> SimpleNamespace:
    """Modules with vLLM's names, whose classes have the recorded methods; asked as vLLM asks."""
    platform = Enum("PlatformEnum", ["CUDA", "ROCM", "CPU", "XPU"])
    scaled = stand_in("ScaledMMLinearKernel", Base)
    fp8, int8 = stand_in("FP8ScaledMMLinearKernel", scaled), stand_in("Int8ScaledMMLinearKernel", scaled)
    block = stand_in("Fp8BlockScaledMMLinearKernel", stand_in("MMLinearKernel", Base))
    cutlass_block = stand_in("CutlassFp8BlockScaledMMKernel", block)
    cutlass_block.can_implement = classmethod(lambda cls, config: (True, None))
    cutlass_int8 = stand_in("CutlassInt8ScaledMMLinearKernel", int8)
    cutlass_int8.process_weights_after_loading = lambda self, layer: None
    cutlass_int8.apply_weights = lambda self, layer, x, bias=None: "vLLM's"
    cutlass_int8._get_layer_params = lambda self, layer: tuple(
        getattr(layer, name, None) for name in self.layer_param_names
    )

    def coded(input: torch.Tensor, scale: Any = None, azp: Any = None, symmetric: bool = True) -> Any:
        assert scale is None and azp is None
        return gemmill.dynamic_scaled_int8_quant(input, symmetric)

    lists = {
        attribute: {
            getattr(platform, key.partition(".")[2]): [type(name, (), {}) for name in names]
            for key, names in of["value"].items()
        }
        for attribute, of in LINEAR.items()
        if attribute.startswith("_POSSIBLE")
    }
    modules = {
        "vllm": {"_custom_ops": SimpleNamespace(scaled_int8_quant=coded)},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False, "VLLM_DISABLED_KERNELS": []},
        "vllm.platforms": {"PlatformEnum": platform},
        "vllm.model_executor": {},
        "vllm.model_executor.kernels": {},
        "vllm.model_executor.kernels.linear": {
            "FP8ScaledMMLinearKernel": fp8,
            "CutlassFp8BlockScaledMMKernel": cutlass_block,
            "CutlassInt8ScaledMMLinearKernel": cutlass_int8,
            **lists,
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["vllm"], "envs", sys.modules["vllm.envs"], raising=False)
    monkeypatch.delitem(sys.modules, "gemmill.compat.vllm_kernels", raising=False)
    monkeypatch.setattr(linear, "_complained", set())
    monkeypatch.delenv("GEMMILL_VLLM", raising=False)
    linear._refusal_of_build.cache_clear()
    yield SimpleNamespace(cuda=platform.CUDA, envs=sys.modules["vllm.envs"], **lists)
    sys.modules.pop("gemmill.compat.vllm_kernels", None)


@pytest.fixture
def served(smoke_build, monkeypatch):
    """A loaded build of the smoke selection."""
    monkeypatch.setattr(ops, "_active", smoke_build)
    return smoke_build


def kernels() -> ModuleType:
    return importlib.import_module("gemmill.compat.vllm_kernels")


def config_of(name: str, **fields: object) -> Any:
    """A config of vLLM's with the recorded fields; all of them must be given."""
    names = VLLM["modules"][f"{_SCALED}.ScaledMMLinearKernel"][name]["fields"]
    return make_dataclass(name, names)(**fields)


def key(group: tuple[int, int], static: bool = True, dtype: torch.dtype = E4M3) -> Any:
    assert CLASSES["QuantKey"]["fields"][:2] == ["dtype", "scale"]
    assert CLASSES["ScaleDesc"]["fields"] == ["dtype", "static", "group_shape"]

    class GroupShape(tuple):
        row, col = group

        def is_per_tensor(self) -> bool:
            return group == (-1, -1)

    assert "is_per_tensor" in CLASSES["GroupShape"]["methods"]
    scale = SimpleNamespace(dtype=torch.float32, static=static, group_shape=GroupShape(group))
    return SimpleNamespace(dtype=dtype, scale=scale)


def fp8(weight=(-1, 1), activation=(1, -1), shape=(64, 128), **changes: object) -> Any:
    fields = {
        "weight_quant_key": key(weight),
        "activation_quant_key": key(activation, static=activation == (-1, -1)),
        "weight_shape": shape,
        "input_dtype": torch.bfloat16,
        "out_dtype": torch.bfloat16,
    }
    return config_of("FP8ScaledMMLinearLayerConfig", **fields | changes)


def int8_config(**changes: object) -> Any:
    fields = {
        "is_static_input_scheme": False,
        "is_channelwise": True,
        "input_symmetric": True,
        "is_fused_module": False,
    }
    return config_of("Int8ScaledMMLinearLayerConfig", **fields | changes)


OURS = {
    "GemmillFP8Linear": ["FP8ScaledMMLinearKernel", "ScaledMMLinearKernel"],
    "GemmillBlockFP8Linear": ["CutlassFp8BlockScaledMMKernel", "Fp8BlockScaledMMLinearKernel", "MMLinearKernel"],
    "GemmillInt8Linear": ["CutlassInt8ScaledMMLinearKernel", "Int8ScaledMMLinearKernel", "ScaledMMLinearKernel"],
}


@pytest.mark.parametrize("name", OURS)
def test_methods_take_what_vllms_take(vllm, name) -> None:
    """Under the same names, as far as they are named in a call; and nothing abstract is left."""
    own = getattr(kernels(), name)
    for method, mine in vars(own).items():
        if not callable(getattr(own, method)) or method.startswith("__"):
            continue
        theirs = next(CLASSES[base]["methods"][method] for base in OURS[name] if method in CLASSES[base]["methods"])
        function = mine.__func__ if isinstance(mine, classmethod) else mine
        assert ("classmethod" in theirs["decorators"]) == isinstance(mine, classmethod), method
        parameters = list(inspect.signature(function).parameters.values())
        found = [[p.name, "keyword" if p.kind is p.KEYWORD_ONLY else "positional"] for p in parameters]
        assert found == [[given, kind] for given, kind, _ in theirs["parameters"] if kind in ("positional", "keyword")]
        given = {p.name for p in parameters if p.default is not p.empty}
        assert given >= {name for name, kind, has in theirs["parameters"] if has and kind in ("positional", "keyword")}
    left = {method for method in own._abstract if getattr(own, method).__name__ == "missing"}
    of_vllm = {
        method
        for base in OURS[name]
        for method, of in CLASSES[base]["methods"].items()
        if "abstractmethod" not in of["decorators"]
    }
    assert left <= of_vllm


def test_the_kernels_are_asked_first_and_once(vllm, served) -> None:
    for _ in range(2):
        vllm_plugin.register()
    ours = kernels()
    for list_, own in (
        ("_POSSIBLE_FP8_KERNELS", ours.GemmillFP8Linear),
        ("_POSSIBLE_FP8_BLOCK_KERNELS", ours.GemmillBlockFP8Linear),
        ("_POSSIBLE_INT8_KERNELS", ours.GemmillInt8Linear),
    ):
        names = [kernel.__name__ for kernel in getattr(vllm, list_)[vllm.cuda]]
        assert names == [own.__name__, *LINEAR[list_]["value"]["PlatformEnum.CUDA"]]


def test_it_is_switched_off(vllm, monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_VLLM", "0")
    vllm_plugin.register()
    assert vllm._POSSIBLE_FP8_KERNELS[vllm.cuda][0].__name__ == "FlashInferFP8ScaledMMLinearKernel"


def test_two_gemmills_are_one_sentence(vllm, caplog) -> None:
    other = type("GemmillInt8Linear", (), {"__module__": "gemmill_copy.compat.vllm_kernels"})
    vllm._POSSIBLE_INT8_KERNELS[vllm.cuda].insert(0, other)
    for _ in range(2):
        vllm_plugin.register()
    assert caplog.messages == [
        "vLLM goes on with its own kernels: gemmill cannot serve here (another gemmill has registered its kernels already, "
        "from gemmill_copy.compat.vllm_kernels: uninstall one of the two)"
    ]
    assert vllm._POSSIBLE_FP8_KERNELS[vllm.cuda][0].__name__ == "FlashInferFP8ScaledMMLinearKernel", "all or none"


def test_another_vllm_is_one_sentence(vllm, caplog, monkeypatch) -> None:
    monkeypatch.delattr(sys.modules["vllm.model_executor.kernels.linear"], "_POSSIBLE_INT8_KERNELS")
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith("vLLM goes on with its own kernels: gemmill cannot serve here (") and "\n" not in message


def test_layers_are_taken_from_the_manifest_and_told_once(vllm, served, caplog) -> None:
    caplog.set_level("INFO", logger="gemmill")
    own = kernels().GemmillFP8Linear
    assert own.is_supported(90) == own.is_supported() == (True, None)
    for _ in range(2):
        assert own.can_implement(fp8()) == (True, None)
    assert own.can_implement(fp8(weight=(-1, -1), activation=(-1, -1))) == (True, None)
    (message,) = caplog.messages
    start = f"build {served.build_id} takes a linear layer of N x K = 64 x 128, float8_e4m3fn to bfloat16, scales per token and channel: "
    assert message.startswith(start) and message.count(" rows") == 3
    assert any(entry.name in message for entry in served.manifest.entries)
    assert own.can_implement(fp8(activation=(1, 128))) == (False, "it takes scales per tensor, token and channel")
    no, why = own.can_implement(fp8(out_dtype=torch.float32))
    assert not no and "\n" not in why
    no, why = own.can_implement(fp8(weight_quant_key=key((-1, 1), dtype="uint4b8")))
    assert not no and why.startswith("gemmill cannot serve here (")


def test_what_is_not_compiled_in_is_not_taken(vllm, served) -> None:
    own = kernels().GemmillBlockFP8Linear
    config = fp8(weight=(128, 128), activation=(1, 128), shape=(256, 512))
    compiled = any(
        entry.predicate.group_size == 128 for entry in served.manifest.entries if entry.family == "scaled_mm"
    )
    assert own.can_implement(config)[0] == compiled
    assert own.can_implement(fp8(weight=(64, 64), activation=(1, 128))) == (
        False,
        "it takes scales of float32 of 128 x 128 of the weight",
    )
    assert linear.refusal(Linear(n=64, k=64, codes=E4M3, out_dtype=torch.bfloat16, azp=True)) is not None


@pytest.mark.parametrize(
    ("capability", "sentence"),
    [(80, "gemmill's build is for sm90a, the GPU has compute capability 80"), (90, None)],
)
def test_another_gpu_is_one_sentence(vllm, served, capability, sentence) -> None:
    for name in OURS:
        assert getattr(kernels(), name).is_supported(capability) == (sentence is None, sentence)


def test_what_keeps_gemmill_from_serving_is_one_sentence(vllm, monkeypatch) -> None:
    """An old torch, no build for this GPU, or a damaged one: the sentence is that of loading it."""

    def refuse() -> None:
        raise ManifestError("build x needs torch 2.11 or later,\ntorch 2.9 is installed: upgrade torch")

    monkeypatch.setattr(ops, "_active", None)
    monkeypatch.setattr(ops, "load", refuse)
    sentence = "gemmill cannot serve here (build x needs torch 2.11 or later, torch 2.9 is installed: upgrade torch)"
    assert kernels().GemmillFP8Linear.is_supported(90) == (False, sentence)
    assert kernels().GemmillFP8Linear.can_implement(fp8()) == (False, sentence)
    assert kernels().GemmillInt8Linear.can_implement(int8_config()) == (False, sentence)


def test_batch_invariance_is_left_to_vllm(vllm, served) -> None:
    vllm.envs.VLLM_BATCH_INVARIANT = True
    assert kernels().GemmillFP8Linear.is_supported(90) == (
        False,
        "gemmill chooses variants by the number of rows, and VLLM_BATCH_INVARIANT is set",
    )


def test_an_fp8_layer_is_computed(vllm, served) -> None:
    """By the reference, on CPU tensors, with vLLM's shapes: scales per channel are [N, 1]."""
    own = kernels().GemmillFP8Linear(fp8(), ["weight", "weight_scale", "input_scale", "input_scale_ub"])
    a, b = torch.ones(5, 32).to(E4M3), torch.ones(48, 32).to(E4M3).t()
    b_scales = torch.arange(1.0, 49.0).reshape(48, 1)
    given = {"A": a, "B": b, "out_dtype": torch.bfloat16, "As": torch.full((5, 1), 0.5), "Bs": b_scales}
    out = own.apply_scaled_mm(**given, bias=torch.ones(48, dtype=torch.bfloat16), output_shape=[1, 5, 48])
    assert torch.equal(out, (16 * b_scales.flatten() + 1).to(torch.bfloat16).expand(1, 5, 48))
    assert own.input_quant_key() is None
    static = kernels().GemmillFP8Linear(fp8(activation=(-1, -1)), [])
    assert static.input_quant_key() is static.config.activation_quant_key


def test_a_layer_in_blocks_is_computed(vllm, served) -> None:
    config = fp8(weight=(128, 128), activation=(1, 128))
    own = kernels().GemmillBlockFP8Linear(config)
    a, b = torch.ones(4, 256).to(E4M3), torch.ones(256, 256).to(E4M3)
    b_scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = own.apply_block_scaled_mm(a, b, torch.ones(4, 2), b_scales)
    assert out[0, 0] == 128 * 3 and out[0, 255] == 128 * 7


@pytest.mark.parametrize("symmetric", [True, False])
def test_an_int8_layer_is_computed(vllm, served, symmetric, monkeypatch) -> None:
    own = kernels().GemmillInt8Linear(int8_config(input_symmetric=symmetric), ["w", "s", "i", "z", "adj"])
    weight = torch.ones(48, 32, dtype=torch.int8).t()
    layer = SimpleNamespace(w=weight, s=torch.full((48, 1), 2.0), orig_dtype=torch.bfloat16)
    if not symmetric:
        layer.adj = weight.sum(dim=0, keepdim=True, dtype=torch.int32)
    monkeypatch.setattr(kernels(), "refusal", lambda linear: None)
    own.process_weights_after_loading(layer)
    x = torch.linspace(1, 2, 32).repeat(2, 3, 1).to(torch.bfloat16)
    out = own.apply_weights(layer, x)
    assert out.shape == (2, 3, 48) and torch.allclose(out.float(), 2 * x.float().sum(-1, keepdim=True), rtol=0.02)
    monkeypatch.setattr(kernels(), "refusal", lambda linear: "no variant")
    own.process_weights_after_loading(layer)
    assert own.apply_weights(layer, x) == "vLLM's"


def test_entry_points_name_functions_that_are_there() -> None:
    project = tomllib.loads((HERE.parents[2] / "pyproject.toml").read_text())["project"]
    group = SGLANG["modules"]["sglang.srt.plugins"]["GENERAL_PLUGINS_GROUP"]["value"]
    assert project["entry-points"] == {
        "vllm.general_plugins": {"gemmill": "gemmill.compat.vllm_plugin:register"},
        group: {"gemmill": "gemmill.compat.sglang_plugin:register"},
    }
    for points in project["entry-points"].values():
        point = importlib.metadata.EntryPoint("gemmill", points["gemmill"], "")
        assert callable(point.load())


@pytest.fixture
def sglang(monkeypatch) -> Any:
    """A registry of hooks with the recorded parameters."""
    of = SGLANG["modules"]["sglang.srt.plugins.hook_registry"]
    assert [p[0] for p in of["HookRegistry"]["methods"]["register"]["parameters"]] == [
        "cls",
        "target",
        "hook",
        "hook_type",
        "source",
    ]
    assert "AROUND" in of["HookType"]["members"] and "_hooks" in of["HookRegistry"]["fields"]

    class HookRegistry:
        _hooks: dict[str, list[Any]] = {}

        @classmethod
        def register(cls, target: str, hook: Any, hook_type: str, *, source: Any = None) -> None:
            cls._hooks.setdefault(target, []).append((hook_type, hook, source))

    module = ModuleType("sglang.srt.plugins.hook_registry")
    module.HookRegistry, module.HookType = HookRegistry, SimpleNamespace(AROUND="around")
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(linear, "_complained", set())
    monkeypatch.setattr(sglang_plugin, "_known", {})
    monkeypatch.delenv("GEMMILL_SGLANG", raising=False)
    return HookRegistry


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
    ):
        theirs = [given[0] for given in modules[module][name]["parameters"]]
        assert list(inspect.signature(hook).parameters) == ["original", *theirs]


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
    monkeypatch.setattr(sglang_plugin, "_refused", lambda linear: False)
    out = sglang_plugin.around_block_scaled_mm(None, *blocks, [128, 128], output_dtype=torch.bfloat16)
    assert torch.equal(out, torch.full((4, 128), 256.0, dtype=torch.bfloat16))

    def own_blocks(*given: object, output_dtype: object) -> str:
        return "SGLang's"

    assert sglang_plugin.around_block_scaled_mm(own_blocks, *blocks, [64, 64], torch.bfloat16) == "SGLang's"
