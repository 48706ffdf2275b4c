"""The plugins of serving engines, against recorded interfaces of a release of each (tools/record_engines.py)."""

import importlib
import importlib.metadata
import inspect
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from engines import CLASSES, LINEAR, SGLANG, VLLM, fp8_config, int8_config, quant_key
from gemmill.compat import linear
from gemmill.compat.linear import Linear
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families import blockscaled, grouped_mm
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.manifest import ManifestError
from gemmill.quantize import prepack as prepacking
from gemmill.quantize import quantize_weight
from gemmill.registry import REGISTRY
from gemmill.runtime import builds, holding, library, ops
from gemmill.space.selections import select

ROOT = Path(__file__).parents[3]
E4M3 = torch.float8_e4m3fn


@pytest.fixture
def served_fp4(make_manifest, table_of, monkeypatch) -> TableOnly:
    """A loaded build of the smoke selection's block-scaled kernels."""
    configs = REGISTRY.configs_of(blockscaled.NAME, select("smoke").configs)
    build = TableOnly(make_manifest(*configs), table_of(*configs))
    monkeypatch.setattr(ops, "_active", build)
    return build


def kernels() -> ModuleType:
    return importlib.import_module("gemmill.compat.vllm.kernels")


OURS = {
    "GemmillFP8Linear": ["CutlassFP8ScaledMMLinearKernel", "FP8ScaledMMLinearKernel", "ScaledMMLinearKernel"],
    "GemmillBlockFP8Linear": ["CutlassFp8BlockScaledMMKernel", "Fp8BlockScaledMMLinearKernel", "MMLinearKernel"],
    "GemmillFineBlockFP8Linear": ["TritonFp8BlockScaledMMKernel", "Fp8BlockScaledMMLinearKernel", "MMLinearKernel"],
    "GemmillInt8Linear": ["CutlassInt8ScaledMMLinearKernel", "Int8ScaledMMLinearKernel", "ScaledMMLinearKernel"],
    "GemmillNvFp4Linear": ["MarlinNvFp4LinearKernel", "NvFp4LinearKernel"],
    "GemmillMxFp4Linear": ["MarlinMxFp4LinearKernel", "MxFp4LinearKernel"],
}


@pytest.mark.parametrize("name", OURS)
def test_methods_take_what_vllms_take(vllm, name) -> None:
    """Under the same names, as far as they are named in a call; and nothing abstract is left."""
    own = getattr(kernels(), name)
    defined = {
        name: value for part in own.__mro__ if part.__module__ == own.__module__ for name, value in vars(part).items()
    }
    for method, mine in defined.items():
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
    given = {
        method
        for base in OURS[name]
        for method, of in CLASSES[base]["methods"].items()
        if "abstractmethod" not in of["decorators"]
    }
    asked = {
        method
        for base in OURS[name]
        for method, of in CLASSES[base]["methods"].items()
        if "abstractmethod" in of["decorators"]
    }
    assert asked <= given | defined.keys(), "what is abstract is ours, or another class of vLLM's has it"


def test_the_kernels_are_asked_first_and_once(vllm, served) -> None:
    for _ in range(2):
        vllm_plugin.register()
    ours = kernels()
    for list_, *own in (
        ("_POSSIBLE_FP8_KERNELS", ours.GemmillFP8Linear),
        ("_POSSIBLE_FP8_BLOCK_KERNELS", ours.GemmillFineBlockFP8Linear, ours.GemmillBlockFP8Linear),
        ("_POSSIBLE_INT8_KERNELS", ours.GemmillInt8Linear),
        ("_POSSIBLE_NVFP4_KERNELS", ours.GemmillNvFp4Linear),
        ("_POSSIBLE_MXFP4_KERNELS", ours.GemmillMxFp4Linear),
    ):
        names = [kernel.__name__ for kernel in getattr(vllm, list_)[vllm.cuda]]
        assert names == [*(kernel.__name__ for kernel in own), *LINEAR[list_]["value"]["PlatformEnum.CUDA"]]


def test_nvfp4_layers_of_plain_activations_come_to_gemmill_where_vllm_names_marlin(
    vllm, served_fp4, monkeypatch
) -> None:
    linear = sys.modules[vllm.__name__]
    importer = ModuleType("vllm.importer")
    importer.init_nvfp4_linear_kernel = linear.init_nvfp4_linear_kernel
    monkeypatch.setitem(sys.modules, "vllm.importer", importer)
    for _ in range(2):
        vllm_plugin.register()
    own = kernels().GemmillNvFp4Linear
    for choose in (linear.init_nvfp4_linear_kernel, importer.init_nvfp4_linear_kernel):
        assert isinstance(choose(use_a16=True), own) and isinstance(choose(True), own)
        assert choose() == "vLLM's, False", "its list is asked"
    monkeypatch.setattr(
        linear, "_get_linear_backend", lambda *, quantization: quantization.replace("nvfp4_w4a16", "marlin")
    )
    assert linear.init_nvfp4_linear_kernel(True) == "vLLM's, True", "--linear-backend holds"


@pytest.mark.parametrize("switch", ["disabled", "no GPU"])
def test_nvfp4_layers_of_plain_activations_stay_with_marlin(vllm, served_fp4, monkeypatch, switch) -> None:
    linear = sys.modules[vllm.__name__]
    vllm_plugin.register()
    if switch == "disabled":
        monkeypatch.setattr(sys.modules["vllm.envs"], "VLLM_DISABLED_KERNELS", ["GemmillNvFp4Linear"])
    else:
        monkeypatch.setattr(kernels().GemmillNvFp4Linear, "is_supported", classmethod(lambda cls: (False, "no GPU")))
    assert linear.init_nvfp4_linear_kernel(True) == "vLLM's, True"


def test_it_is_switched_off(vllm, monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_VLLM", "0")
    vllm_plugin.register()
    assert vllm._POSSIBLE_FP8_KERNELS[vllm.cuda][0].__name__ == "FlashInferFP8ScaledMMLinearKernel"


def test_two_gemmills_are_one_sentence(vllm, caplog) -> None:
    other = type("GemmillInt8Linear", (), {"__module__": "gemmill_copy.compat.vllm.kernels"})
    vllm._POSSIBLE_INT8_KERNELS[vllm.cuda].insert(0, other)
    for _ in range(2):
        vllm_plugin.register()
    assert caplog.messages == [
        "vLLM goes on with its own kernels: gemmill cannot serve here (another gemmill has registered its kernels already, "
        "from gemmill_copy.compat.vllm.kernels: uninstall one of the two)"
    ]
    assert vllm._POSSIBLE_FP8_KERNELS[vllm.cuda][0].__name__ == "FlashInferFP8ScaledMMLinearKernel", "all or none"


def test_another_vllm_is_one_sentence(vllm, caplog, monkeypatch) -> None:
    monkeypatch.delattr(sys.modules["vllm.model_executor.kernels.linear"], "_POSSIBLE_INT8_KERNELS")
    vllm_plugin.register()
    (message,) = caplog.messages
    assert message.startswith("vLLM goes on with its own kernels: gemmill cannot serve here (") and "\n" not in message


def fp8_layer(n: int = 64, k: int = 128) -> Any:
    """As vLLM's scheme leaves it before its kernel has the weights: B [K, N] of contiguous columns."""
    return SimpleNamespace(weight=torch.ones(n, k).to(E4M3).t(), weight_scale=torch.full((n, 1), 2.0), bias=None)


PARAMETERS = ["weight", "weight_scale", "input_scale", "input_scale_ub"]


def test_layers_are_taken_from_the_manifest_and_told_once(vllm, served, caplog, capsys) -> None:
    """After all weights have been processed; a refusal when it is met."""
    caplog.set_level("INFO", logger="gemmill")
    vllm_plugin.register()
    own = kernels().GemmillFP8Linear
    assert own.is_supported(90) == own.is_supported() == (True, None)
    for _ in range(2):
        assert own.can_implement(fp8_config()) == (True, None)
    assert own.can_implement(fp8_config(weight=(-1, -1), activation=(-1, -1))) == (True, None)
    assert not caplog.messages
    layers = [(own(fp8_config(), PARAMETERS), fp8_layer()) for _ in range(3)]
    process = sys.modules["vllm.model_executor.model_loader.base_loader"].process_weights_after_loading
    process(layers, None, target_device=None)
    process(layers[:1], None, target_device=None)  # as reloaded weights
    kind = "linear layer of N x K = 64 x 128, float8_e4m3fn to bfloat16, scales per token and channel"
    for message in caplog.messages:
        start = f"GemmillFP8Linear takes a {kind}, 3 of them: build {served.build_id} has "
        assert message.startswith(start) and message.count(" rows") == 3
        assert any(entry.name in message for entry in served.manifest.entries)
    assert len(caplog.messages) == 2
    refused = "it takes scales per tensor, token and channel"
    for _ in range(2):
        assert own.can_implement(fp8_config(activation=(1, 128))) == (False, refused)
    assert caplog.messages[2:] == [f"a linear layer of N x K = 64 x 128 stays with the engine: {refused}"]
    no, why = own.can_implement(fp8_config(out_dtype=torch.float32))
    assert not no and "\n" not in why
    no, why = own.can_implement(fp8_config(weight_quant_key=quant_key((-1, 1), dtype="uint4b8")))
    assert not no and why.startswith("gemmill cannot serve here (")
    report = gemmill.serving_report()
    (found,) = report["served"]
    assert (found["layer"], found["by"], found["layers"]) == (kind, "GemmillFP8Linear", 3)
    assert [part["why"] for part in report["left"]][::2] == [refused, why]
    assert capsys.readouterr().out.splitlines()[:2] == [caplog.messages[1], caplog.messages[2]]


def test_a_process_without_layers_is_told() -> None:
    linear.forget()
    assert gemmill.serving_report() == {"served": [], "left": []}


def linears(packs: bool) -> dict[str, tuple[Any, Any]]:
    """A kernel of each kind, and a layer for it."""
    ours, blocks = kernels(), fp8_config(weight=(128, 128), activation=(1, 128), shape=(128, 256))
    int8 = SimpleNamespace(weight=torch.ones(48, 32, dtype=torch.int8).t(), weight_scale=torch.ones(48, 1), bias=None)
    in_blocks = SimpleNamespace(weight=torch.ones(128, 256).to(E4M3), weight_scale_inv=torch.ones(1, 2), bias=None)
    fine = fp8_config(weight=(32, 32), activation=(1, 32), shape=(128, 256))
    in_fine_blocks = SimpleNamespace(weight=torch.ones(128, 256).to(E4M3), weight_scale_inv=torch.ones(4, 8), bias=None)
    made = {
        "GemmillFineBlockFP8Linear": (ours.GemmillFineBlockFP8Linear(fine), in_fine_blocks),
        "GemmillFP8Linear": (ours.GemmillFP8Linear(fp8_config(), PARAMETERS), fp8_layer()),
        "GemmillBlockFP8Linear": (ours.GemmillBlockFP8Linear(blocks), in_blocks),
        "GemmillInt8Linear": (ours.GemmillInt8Linear(int8_config(), [*PARAMETERS, "azp_adj"]), int8),
    }
    return made if not packs else {name: fp4_kernel(name) for name in ("GemmillNvFp4Linear", "GemmillMxFp4Linear")}


def fp4_kernel(name: str) -> tuple[Any, Any]:
    format = {"GemmillNvFp4Linear": "nvfp4", "GemmillMxFp4Linear": "mxfp4"}[name]
    made = quantize_weight(torch.randn(72, 256, generator=torch.Generator().manual_seed(72)), format)
    layer = SimpleNamespace(weight=made.codes, weight_scale=made.scales, params_dtype=torch.bfloat16, bias=None)
    if made.global_scale is not None:
        layer.weight_global_scale = 1 / made.global_scale
    return getattr(kernels(), name)(SimpleNamespace(activation_quant_key=None)), layer


def applied(kernel: Any, layer: Any) -> Any:
    """As vLLM calls it, with one row."""
    name, x = type(kernel).__name__, torch.ones(1, 256, dtype=torch.bfloat16)
    if name == "GemmillFP8Linear":
        operands = {
            "A": torch.ones(1, 128).to(E4M3),
            "B": layer.weight,
            "As": torch.ones(1, 1),
            "Bs": layer.weight_scale,
        }
        return kernel.apply_scaled_mm(**operands, out_dtype=torch.bfloat16, bias=None, output_shape=[1, 64])
    if name.endswith("BlockFP8Linear"):
        groups = layer.weight_scale_inv.shape[1]
        return kernel.apply_block_scaled_mm(x.to(E4M3), layer.weight, torch.ones(1, groups), layer.weight_scale_inv)
    return kernel.apply_weights(layer, x[:, :32] if name == "GemmillInt8Linear" else x)


@pytest.mark.parametrize("fails", ["", "in a meta call", "in a real call", "while it is packed"])
@pytest.mark.parametrize("packs", [False, True])
def test_a_layer_whose_first_call_fails_stays_with_vllm(
    vllm, served, served_fp4, monkeypatch, caplog, packs: bool, fails: str
) -> None:
    """It has the weights that vLLM's kernel needs, and one sentence says why."""
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    monkeypatch.setattr(kernels(), "refusal", lambda layer: None)
    op = "fp4_weight_mm" if packs else "cutlass_scaled_mm"
    right = getattr(gemmill, op)

    def failing(x: Tensor, *operands: Any, **named: Any) -> Tensor:
        if x.is_meta == (fails == "in a meta call") and fails in ("in a meta call", "in a real call"):
            raise RuntimeError("base is bf16:\npass f32")
        return right(x, *operands, **named)

    def unpacked(*given: Any, **named: Any) -> None:
        raise RuntimeError("base is bf16: pass f32")

    monkeypatch.setattr(gemmill, op, failing)
    if fails == "while it is packed":
        monkeypatch.setattr(prepacking, "prepack", unpacked)
    fails = fails if packs or fails != "while it is packed" else ""
    for kernel, layer in linears(packs).values():
        caplog.clear()
        before = dict(vars(layer))
        kernel.process_weights_after_loading(layer)
        out = applied(kernel, layer)
        if not fails:
            assert out.dtype == torch.bfloat16 and not caplog.messages
            continue
        assert out == "vLLM's" and {name: vars(layer)[name] for name in before} == before
        (message,) = caplog.messages
        told = {
            "in a meta call": "its first call of meta tensors, as torch.compile's fake ones, failed (base is bf16: pass f32)",
            "in a real call": "its first call failed (base is bf16: pass f32)",
            "while it is packed": "base is bf16: pass f32",
        }
        assert message.endswith(f" stays with the engine: {told[fails]}")
        assert (vars(layer).get("prepared") == "vLLM's") == (type(kernel).__name__ == "GemmillFP8Linear")


def test_views_of_weights_are_made_once_and_again_where_weights_move(vllm, served, monkeypatch) -> None:
    """Calls outside of graphs keep them, also where an engine gives the same parameter other memory."""
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    monkeypatch.setattr(kernels(), "refusal", lambda layer: None)
    for name, (kernel, layer) in linears(packs=False).items():
        kernel.process_weights_after_loading(layer)
        first = applied(kernel, layer)
        kept = dict(kernel._views)
        assert kept and torch.equal(applied(kernel, layer), first), name
        assert all(kernel._views[place] is views for place, views in kept.items()), name
        scales = layer.weight_scale_inv if "Block" in name else layer.weight_scale
        scales.data = 2 * scales.data
        assert first.abs().min() > 0 and torch.equal(applied(kernel, layer), 2 * first), name
        if name == "GemmillInt8Linear":  # which keeps views and parameters: a graph has neither
            assert torch.equal(torch.compile(applied, backend="eager", fullgraph=True)(kernel, layer), 2 * first)
        layer.weight = (2 * layer.weight.float().t()).to(layer.weight.dtype).contiguous().t()
        if "Block" in name:
            layer.weight = layer.weight.contiguous()
        assert torch.equal(applied(kernel, layer), 4 * first), name


def test_what_is_not_compiled_in_is_not_taken(vllm, served) -> None:
    own = kernels().GemmillBlockFP8Linear
    config = fp8_config(weight=(128, 128), activation=(1, 128), shape=(256, 512))
    compiled = any(
        accepted(entry.config).group_size == 128 for entry in served.manifest.entries if entry.family == "scaled_mm"
    )
    assert own.can_implement(config)[0] == compiled
    assert own.can_implement(fp8_config(weight=(64, 64), activation=(1, 128))) == (
        False,
        "it takes scales of float32 of 128 x 128 or 32 x 32 of the weight",
    )
    fine = kernels().GemmillFineBlockFP8Linear
    assert own.can_implement(fp8_config(weight=(32, 32), activation=(1, 32))) == (False, "it takes blocks of 128")
    assert fine.can_implement(config) == (False, "it takes blocks of 32")
    assert fine.can_implement(fp8_config(weight=(32, 32), activation=(1, 128))) == (
        False,
        "it takes scales of 1 x 32 of the activations",
    )
    (left,) = {told["layer"] for told in gemmill.serving_report()["left"] if "1 x 32" in told["why"]}
    assert left.endswith("with scales of blocks")
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
    assert kernels().GemmillFP8Linear.can_implement(fp8_config()) == (False, sentence)
    assert kernels().GemmillInt8Linear.can_implement(int8_config()) == (False, sentence)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("tampered", "is not the one in its manifest: SHA-256 "),
        ("removed", "the current one for sm90a, is no longer in "),
        ("torch", "needs torch 2.11 or later, torch 2.9.0 is installed: upgrade torch)"),
        ("gpu", "no build of gemmill for sm100a in "),
        ("cuda", "is of CUDA 13, the driver runs up to 12.8: upgrade the driver, or build with a CUDA 12 toolkit)"),
    ],
)
def test_vllm_goes_on_whatever_is_wrong_with_the_build(
    vllm, monkeypatch, put_build, home, what: str, told: str
) -> None:
    """In one sentence, before anything of the build is loaded."""
    build_id = put_build().build_id
    folder = home / "builds" / build_id
    monkeypatch.setattr(ops, "_active", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0) if what == "gpu" else (9, 0))
    monkeypatch.setattr(library, "driver_cuda", lambda: (12, 8) if what == "cuda" else (13, 0))
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "2.9.0")
    if what == "tampered":
        next(folder.glob("*.so")).write_bytes(b"another")
    if what == "removed":
        builds.use(folder, home)
        shutil.rmtree(folder)
    for kernel in OURS:
        is_supported, sentence = getattr(kernels(), kernel).is_supported(90)
        assert not is_supported and sentence.startswith("gemmill cannot serve here (") and told in sentence, sentence
        assert "\n" not in sentence


def test_an_fp8_layer_is_computed(vllm, served) -> None:
    """By the reference, on CPU tensors, with vLLM's shapes: scales per channel are [N, 1]."""
    own = kernels().GemmillFP8Linear(fp8_config(), ["weight", "weight_scale", "input_scale", "input_scale_ub"])
    a, b = torch.ones(5, 32).to(E4M3), torch.ones(48, 32).to(E4M3).t()
    b_scales = torch.arange(1.0, 49.0).reshape(48, 1)
    given = {"A": a, "B": b, "out_dtype": torch.bfloat16, "As": torch.full((5, 1), 0.5), "Bs": b_scales}
    out = own.apply_scaled_mm(**given, bias=torch.ones(48, dtype=torch.bfloat16), output_shape=[1, 5, 48])
    assert torch.equal(out, (16 * b_scales.flatten() + 1).to(torch.bfloat16).expand(1, 5, 48))
    assert own.input_quant_key() is None
    static = kernels().GemmillFP8Linear(fp8_config(activation=(-1, -1)), [])
    assert static.input_quant_key() is static.config.activation_quant_key


def test_a_layer_in_blocks_is_computed(vllm, served) -> None:
    config = fp8_config(weight=(128, 128), activation=(1, 128))
    own = kernels().GemmillBlockFP8Linear(config)
    a, b = torch.ones(4, 256).to(E4M3), torch.ones(256, 256).to(E4M3)
    b_scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = own.apply_block_scaled_mm(a, b, torch.ones(4, 2), b_scales)
    assert out[0, 0] == 128 * 3 and out[0, 255] == 128 * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu])
def test_a_layer_in_blocks_of_32_is_computed(vllm, served, monkeypatch, dtype: torch.dtype) -> None:
    """DeepSeek V4's checkpoints have ue8m0 scales, which become float32 once."""
    monkeypatch.setattr(kernels(), "refusal", lambda layer: None)
    own = kernels().GemmillFineBlockFP8Linear(fp8_config(weight=(32, 32), activation=(1, 32), shape=(64, 96)))
    scales = torch.tensor([[1.0, 2.0, 4.0], [0.5, 0.25, 8.0]])
    layer = SimpleNamespace(weight=torch.ones(64, 96).to(E4M3), weight_scale_inv=scales.to(dtype), bias=None)
    own.process_weights_after_loading(layer)
    assert own._taken and layer.weight_scale_inv.dtype is torch.float32
    out = own.apply_block_scaled_mm(torch.ones(5, 96).to(E4M3), layer.weight, torch.ones(5, 3), layer.weight_scale_inv)
    assert torch.equal(out, torch.tensor([224.0, 280.0]).repeat_interleave(32).bfloat16().expand(5, 64))


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


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_a_layer_of_4_bit_weights_is_computed(vllm, served_fp4, format, monkeypatch) -> None:
    """Packed once it is loaded; Marlin's kernel serves calls that no variant fits, other dtypes and weights that cannot be packed."""
    own = getattr(kernels(), {"nvfp4": "GemmillNvFp4Linear", "mxfp4": "GemmillMxFp4Linear"}[format])

    def layer(n: int = 72, k: int = 256, dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        made = quantize_weight(weight, format)
        parts = {"weight": made.codes, "weight_scale": made.scales, "params_dtype": dtype, "made": made}
        if made.global_scale is not None:
            parts["weight_scale"] = made.scales.view(E4M3)
            parts["weight_global_scale"] = torch.nn.Parameter(1 / made.global_scale, requires_grad=False)
        return SimpleNamespace(
            **{
                name: torch.nn.Parameter(x, requires_grad=False) if isinstance(x, torch.Tensor) else x
                for name, x in parts.items()
            }
        )

    def loaded(given: SimpleNamespace) -> Any:
        kernel = own(SimpleNamespace(activation_quant_key=None))
        kernel.process_weights_after_loading(given)
        return kernel

    assert own.can_implement(SimpleNamespace(activation_quant_key=None)) == (True, None)
    given, x = layer(), torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = x.float() @ given.made.values().t() + 1
    out = loaded(given).apply_weights(given, x, torch.ones(72, dtype=torch.bfloat16))
    assert out.shape == (2, 3, 72) and (out.float() - wanted).norm() <= 0.005 * wanted.norm()
    for other in (layer(dtype=torch.float32), layer(dtype=torch.float16)):
        assert loaded(other).apply_weights(other, x) == "vLLM's", other.params_dtype
    monkeypatch.setattr(kernels(), "packed_fp4", lambda *given: None)
    assert loaded(layer()).apply_weights(layer(), x) == "vLLM's"
    monkeypatch.setattr(kernels(), "refusal", lambda linear: "no variant")
    assert own.can_implement(SimpleNamespace(activation_quant_key=None)) == (False, "no variant")


@pytest.fixture
def served_experts(make_manifest, table_of, monkeypatch) -> TableOnly:
    """A loaded build of the smoke selection's grouped GEMMs."""
    configs = REGISTRY.configs_of(grouped_mm.NAME, select("smoke").configs)
    build = TableOnly(make_manifest(*configs), table_of(*configs))
    monkeypatch.setattr(ops, "_active", build)
    return build


@pytest.mark.parametrize("shape", [(48, 96), (96, 96)])
def test_vllms_experts_come_to_gemmill_where_a_variant_fits(vllm, served_experts, caplog, shape) -> None:
    """Both GEMMs of a layer as vLLM's CutlassExpertsFp8 makes them: weights [E, N, K], scales [E, N, 1]."""
    caplog.set_level("INFO", logger="gemmill")
    module, (n, k) = sys.modules["vllm._custom_ops"], shape
    of_vllm = module.cutlass_moe_mm
    for _ in range(2):
        vllm_plugin.register()
    assert module.cutlass_moe_mm.__wrapped__ is of_vllm, "once"
    theirs = [name for name, *_ in VLLM["modules"]["vllm._custom_ops"]["cutlass_moe_mm"]["parameters"]]
    a, b = (torch.randn(s, generator=torch.Generator().manual_seed(n)).to(E4M3) for s in ((5, k), (2, n, k)))
    a_scales, b_scales = torch.rand(5, 1), torch.rand(2, n, 1)
    begins, sizes = torch.tensor([0, 2]), torch.tensor([[n, 2, k], [n, 3, k]], dtype=torch.int32)
    strides = [torch.full((2,), length) for length in (k, k, n)]
    out = torch.full((5, n), torch.nan, dtype=torch.bfloat16)
    given = dict(zip(theirs, (out, a, b, a_scales, b_scales, begins, sizes, *strides, True, True), strict=True))
    assert module.cutlass_moe_mm(*given.values()) is None
    wanted = torch.cat(
        [a[rows].float() @ b[e].float().t() * b_scales[e].t() for e, rows in ((0, slice(2)), (1, slice(2, 5)))]
    )
    assert (out.float() - a_scales * wanted).norm() <= 0.005 * (a_scales * wanted).norm()
    told = f"cutlass_moe_mm takes a layer of 2 experts of N x K = {n} x {k}, float8_e4m3fn to bfloat16, "
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(told)
    assert module.cutlass_moe_mm(**given | {"out_tensors": out.float()}) == "vLLM's"
    assert "a call failed" not in caplog.text
    linear.forget()
    vllm.envs.VLLM_BATCH_INVARIANT = True
    assert module.cutlass_moe_mm(*given.values()) is None and holding.holds_here()


def test_weights_that_cannot_be_packed_are_told(caplog) -> None:
    scales = torch.full((4, 2), 127, dtype=torch.uint8)
    scales[1, 0] = 0
    codes = torch.full((4, 32), 0x22, dtype=torch.uint8)
    assert linear.packed_fp4("mxfp4", codes, scales) is None
    (message,) = caplog.messages
    assert message.startswith(
        "a layer of mxfp4 weights of N x K = 4 x 64 stays with the engine: blocks take scales of mxfp4 that spread over at"
    )


def test_entry_points_name_functions_that_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = SGLANG["modules"]["sglang.srt.plugins"]["GENERAL_PLUGINS_GROUP"]["value"]
    assert project["entry-points"] == {
        "vllm.general_plugins": {"gemmill": "gemmill.compat.vllm.plugin:register"},
        group: {"gemmill": "gemmill.compat.sglang.plugin:register"},
    }
    for points in project["entry-points"].values():
        point = importlib.metadata.EntryPoint("gemmill", points["gemmill"], "")
        assert callable(point.load())
