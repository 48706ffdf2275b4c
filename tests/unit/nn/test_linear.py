"""QuantLinear over all formats: its output is its ops' result, and contradictions are refused."""

import copy
import io
import json
import os
import shutil
from dataclasses import replace
from errno import ENOSPC, EROFS
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gemmill
from gemmill.checkpoints.file import CheckpointError, Stored
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.nn import Calibration, QuantLinear, calls, linear, load_linears, packed, quantize_module, recipes
from gemmill.quantize import quantize_weight
from stored import layers, save

K, N = 256, 72
RECIPES = list(recipes.RECIPES)
LAYERS = layers()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def made(format: str, activations: str, bias: Tensor | None = None) -> QuantLinear:
    absmax = drawn(5, K).abs().max() if activations == "nvfp4" else None
    return QuantLinear(quantize_weight(drawn(N, K), format), bias, activations=activations, input_absmax=absmax)


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_it_computes_the_product_of_the_quantised_weight(format: str, activations: str) -> None:
    x, bias = drawn(5, K), drawn(1, N)
    layer = made(format, activations, bias)
    out = layer(x)
    values = quantize_weight(drawn(N, K), format).values()
    wanted = x.float() @ values.t() + bias.float()
    # The rest is the rounding of activations: of 4 bits a tenth, of 8 a 25th, of bf16 that of the result.
    limit = {"bf16": 0.005, "int8": 0.02, "e4m3": 0.04, "mxfp8": 0.04}.get(activations, 0.15)
    assert out.dtype is torch.bfloat16 and (out.float() - wanted).norm() <= limit * wanted.norm()
    assert torch.equal(layer(x.view(1, 5, K)), out.view(1, 5, N)), "leading dimensions stay"
    assert layer(x[:0]).shape == (0, N)
    assert f"{K} -> {N}, {format} weights, {activations} activations" in repr(layer)


def test_many_rows_multiply_the_same_operands_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the dense op from the threshold on, but not below, of padded weights, or under batch invariance."""
    dense = []
    multiply = calls._SCALED_MM
    monkeypatch.setattr(calls, "_SCALED_MM", lambda *given: (dense.append(given[2].shape), multiply(*given)))
    run = calls.by_fp8("nvfp4_fp8_mm_rounded", 6)
    x, bias = drawn(6, K), drawn(128)
    layer = QuantLinear(quantize_weight(drawn(128, K), "nvfp4"), bias, activations="e4m3")
    wanted = layer(x)
    assert not dense
    layer._run = run
    found = layer(x)
    assert dense == [(K, 128)]
    # The same products are added; f32 rounds each of K sums, then bf16 the result.
    limit = K * 2**-24 * (x.float().abs() @ quantize_weight(drawn(128, K), "nvfp4").values().abs().float().t()) * 1.1
    assert ((found.float() - wanted.float()).abs() <= limit + 2**-8 * wanted.float().abs()).all()
    assert torch.equal(layer(x[:5]), wanted[:5]) and len(dense) == 1, "few rows"
    with gemmill.batch_invariant():
        assert torch.equal(layer(x), wanted) and len(dense) == 1
    for n, k in ((72, K), (128, 384)):
        padded = QuantLinear(quantize_weight(drawn(n, k), "nvfp4"), activations="e4m3")
        padded._run = run
        assert padded(drawn(6, k)).shape == (6, n) and len(dense) == 1, "padded weights"


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_it_compiles_whole(format: str, activations: str) -> None:
    """By dynamo and AOT autograd: a compiler goes by the ops' fakes and mutated arguments."""
    layer, x = made(format, activations, drawn(N)), drawn(3, K)
    layer.set_lora(drawn(4, K), drawn(N, 4))
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for given in (x, x.view(1, 3, K)):
        assert torch.equal(compiled(given), layer(given))


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_a_state_dict_and_a_file_bring_it_back(format: str, activations: str, tmp_path: Path) -> None:
    layer, x = made(format, activations, drawn(N)), drawn(3, K)
    other = QuantLinear(
        quantize_weight(drawn(N + 1, K)[:N], format),
        torch.zeros(N, dtype=torch.bfloat16),
        activations=activations,
        input_absmax=1.0 if activations == "nvfp4" else None,
    )
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    absmax = drawn(5, K).abs().max() if activations == "nvfp4" else None
    kept = packed.pack(quantize_weight(drawn(N, K), format), activations=activations, input_absmax=absmax)
    packed.write_packed(kept, tmp_path / "a.safetensors")
    assert torch.equal(QuantLinear(packed.read_packed(tmp_path / "a.safetensors"), layer.bias)(x), layer(x))


def test_weights_packed_for_other_kernels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = made("nvfp4", "bf16")
    state = layer.state_dict()
    kept = packed.pack(quantize_weight(drawn(N, K), "nvfp4"))
    packed.write_packed(kept, tmp_path / "a.safetensors")
    own = recipes.PACKING
    for module in (linear, packed):
        monkeypatch.setattr(module, "PACKING", "0123456789ab")
    before = layer.weight.clone()
    with pytest.raises(CheckpointError) as error:
        layer.load_state_dict({**state, "weight": 1 - state["weight"]})
    assert torch.equal(layer.weight, before), "nothing is copied"
    assert str(error.value) == (
        f"these weights were packed for other kernels (packing is {own} and 0123456789ab is needed): pack them anew from the checkpoint"
    )
    with pytest.raises(CheckpointError) as error:
        packed.read_packed(tmp_path / "a.safetensors")
    assert str(error.value) == (
        f"{tmp_path}/a.safetensors was packed for another kernel set ({own}, and this one reads 0123456789ab): pack it anew from the "
        "checkpoint"
    )
    save(tmp_path / "b.safetensors", {"weight": drawn(2, 2)})
    with pytest.raises(
        CheckpointError, match=r"b\.safetensors has no weights packed by gemmill: load it as a checkpoint$"
    ):
        packed.read_packed(tmp_path / "b.safetensors")


def test_lora_is_added_beside_the_weight() -> None:
    layer, x = made("nvfp4", "bf16"), drawn(5, K)
    plain, down, up = layer(x), drawn(4, K), drawn(N, 4)
    layer.set_lora(down, up, alpha=8.0, strength=0.25)
    wanted = plain.float() + 0.25 * 8 / 4 * (x @ down.t()).float() @ up.float().t()
    assert torch.allclose(layer(x).float(), wanted, rtol=0.02, atol=0.1)
    assert {"lora_down", "lora_up"} <= layer.state_dict().keys()
    layer.remove_lora()
    assert torch.equal(layer(x), plain)
    with pytest.raises(
        ValueError, match=rf"^LoRA has \[4, 3\] and \[{N}, 4\], expected \[rank, {K}\] and \[{N}, rank\]$"
    ):
        layer.set_lora(drawn(4, 3), up)


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_it_computes_with_the_tensors_that_it_has_now(format: str, activations: str) -> None:
    """After a first call, whose operands are kept: of copies, of a state dict that takes their places, of a moved module."""
    layer, x = made(format, activations, drawn(N)), drawn(3, K)
    before, other = layer(x), made(format, activations, drawn(N))
    for name in ("weight", "weight_scale"):  # bytes of codes in another order are codes too
        getattr(other, name).copy_(getattr(layer, name).flip(0))
    wanted = other(x)
    assert not torch.equal(wanted, before)
    copied, file = copy.deepcopy(layer), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    layer.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(layer(x), wanted)
    assert torch.equal(copied(x), before) and torch.equal(pickled(x), before)
    assert copied.weight.data_ptr() != layer.weight.data_ptr()
    layer.to(device="cpu", dtype=torch.float32)
    assert layer._ready is None, "nothing of what was there is kept"


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_codes_and_scales_keep_their_types(format: str, activations: str) -> None:
    """A model is converted as a whole: the bias and the adapter follow where x may have the dtype."""
    layer, x = made(format, activations, drawn(N)), drawn(3, K)
    layer.set_lora(drawn(4, K), drawn(N, 4))
    out, packed_types = layer(x), {name: tensor.dtype for name, tensor in layer.named_buffers() if name in linear.NAMES}
    in_f16 = torch.float16 in layer._recipe.inputs
    for convert, following in (
        (nn.Module.half, torch.float16 if in_f16 else torch.bfloat16),
        (nn.Module.double, torch.bfloat16),
        (lambda model: model.to(torch.bfloat16), torch.bfloat16),
        (lambda model: model.to("meta", torch.float16), torch.float16 if in_f16 else torch.bfloat16),
        (lambda model: model.type(torch.int32), torch.bfloat16),
    ):
        model = nn.Sequential(copy.deepcopy(layer))
        model(x)
        model[0].below = nn.BatchNorm1d(2, affine=False)
        found = convert(model)[0]
        wanted = convert(nn.BatchNorm1d(2, affine=False)).running_mean.dtype
        assert found.below.running_mean.dtype is wanted, "the rule is for the layer's own tensors"
        del found.below
        assert {name: tensor.dtype for name, tensor in found.named_buffers()} == {
            **packed_types,
            **dict.fromkeys(("bias", "lora_down", "lora_up"), following),
        }
        if found.weight.device.type == "meta":
            assert {tensor.device.type for tensor in found.buffers()} == {"meta"}
        elif following is torch.float16:
            assert (found(x.half()).float() - out.float()).norm() <= 0.01 * out.float().norm()
        else:
            assert torch.equal(found(x), out)


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_inputs_are_told_in_the_layers_terms(format: str, activations: str) -> None:
    """Nobody who calls a layer has heard of a, b or out."""
    layer = made(format, activations)
    takes = "bfloat16" if (format, activations) in (("nvfp4", "bf16"), ("mxfp4", "bf16")) else "bfloat16 or float16"
    by_type = "convert x, as by x.to(torch.bfloat16)"
    inputs = {
        "float32 [3, 256]": by_type,
        "float64 [2, 3, 256]": by_type,
        "int64 [256]": by_type,
        "float32 [3, 128]": by_type,
        "bfloat16 [3, 128]": "give rows of 256",
        "bfloat16 [4, 2, 128]": "give rows of 256",
        "bfloat16 [0, 512]": "give rows of 256",
        "bfloat16 []": "give rows of 256",
    }
    if takes == "bfloat16":
        inputs["float16 [3, 256]"] = by_type
    for found, remedy in inputs.items():
        dtype, shape = found.split(" ", 1)
        with pytest.raises(ValueError) as error:
            layer(torch.zeros(json.loads(shape), dtype=getattr(torch, dtype)))
        assert str(error.value) == (
            f"x is {found}; a layer 256 -> 72, {format} weights, {activations} activations takes {takes} [..., 256]: {remedy}"
        )
    assert layer(drawn(K)).shape == (N,)


@pytest.mark.parametrize("name", ["weight", "weight_scale"])
@pytest.mark.parametrize("format", ["channel", "int8", "block128", "block32"])
def test_either_tensor_alone_may_be_another(name: str, format: str) -> None:
    """After a first call, whose operands are kept, a state may bring a tensor in another's place."""
    layer, x = made(format, recipes.recipe_of(format, None)[0]), drawn(3, K)
    layer(x)
    other = QuantLinear(quantize_weight(2 - 3 * drawn(N, K), format)).state_dict()[name]
    wanted = copy.deepcopy(layer)
    getattr(wanted, name).copy_(other)
    layer.load_state_dict({name: other}, strict=False, assign=True)
    assert torch.equal(layer(x), wanted(x)) and not torch.equal(layer(x), made(format, wanted.activations)(x))


def test_a_state_dict_has_the_adapter_and_its_factor() -> None:
    layer, x = made("nvfp4", "bf16"), drawn(5, K)
    plain, state = layer(x), layer.state_dict()
    layer.set_lora(drawn(4, K), drawn(N, 4), alpha=8.0, strength=0.25)
    wanted, adapted = layer(x), layer.state_dict()
    for rank in (0, 4, 2):  # of an adapter that is there before
        other = made("nvfp4", "bf16")
        if rank:
            other.set_lora(torch.zeros(rank, K).bfloat16(), torch.zeros(N, rank).bfloat16())
        other.load_state_dict(adapted)
        assert torch.equal(other(x), wanted), rank
    other.lora_up.zero_()
    assert torch.equal(layer(x), wanted), "the copy has memory of its own"
    other.load_state_dict(state)
    assert other.lora_down is None and torch.equal(other(x), plain)


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_safetensors_keeps_a_state_dict(format: str, activations: str, tmp_path: Path) -> None:
    layer, x = made(format, activations, drawn(N)), drawn(3, K)
    layer.set_lora(drawn(4, K), drawn(N, 4), alpha=8.0, strength=0.25)
    save_file(nn.Sequential(layer).state_dict(), tmp_path / "a.safetensors")
    other = nn.Sequential(made(format, activations, torch.zeros(N, dtype=torch.bfloat16)))
    missing = other.load_state_dict(load_file(tmp_path / "a.safetensors"))
    assert not missing.missing_keys and not missing.unexpected_keys
    assert torch.equal(other(x), layer(x)) and other[0].lora_scale == 0.5


def test_an_extra_state_of_another_kind_is_refused() -> None:
    layer = made("nvfp4", "bf16")
    for state in (
        torch.ones(3),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor(list(b"[1]"), dtype=torch.uint8),
    ):
        kind = str(state.dtype).removeprefix("torch.")
        with pytest.raises(CheckpointError) as error:
            layer.load_state_dict({**layer.state_dict(), "_extra_state": state})
        assert str(error.value) == (
            f"the extra state is {kind} {list(state.shape)}, expected the uint8 text of a QuantLinear's state dict"
        )
    layer.set_extra_state(layer.told() | {"lora_scale": 0.25})  # as state dicts once had it
    assert layer.lora_scale == 0.25


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_x_bias_and_adapter(dtype: torch.dtype) -> None:
    bias, down, up, x = drawn(N).float(), drawn(4, K).float(), drawn(N, 4).float(), drawn(3, K).float()
    layer, wanted = made("channel", "e4m3", bias), made("channel", "e4m3", bias.to(dtype))
    layer.set_lora(down, up)
    wanted.set_lora(down.to(dtype), up.to(dtype))
    with torch.autocast("cpu", dtype):
        assert torch.equal(layer(x), wanted(x.to(dtype))) and layer(x).dtype is dtype
        assert torch.equal(layer(x[None]), layer(x)[None])
        for refused in (x[:, 1:], torch.ones(3, K, dtype=torch.int32)):
            with pytest.raises(ValueError, match=r"^x is (float32|int32) \[3, "):
                layer(refused)
    with pytest.raises(ValueError, match=r"^x is float32 \[3, 256\].*: convert x, as by x.to\(torch.bfloat16\)$"):
        layer(x)


def test_a_layer_is_made_from_a_linear() -> None:
    source, x = nn.Linear(K, N).bfloat16(), drawn(5, K)
    layer = QuantLinear.from_linear(source, "mxfp8", activations="bf16")
    assert torch.equal(
        layer(x), QuantLinear(quantize_weight(source.weight.detach(), "mxfp8"), source.bias, activations="bf16")(x)
    )
    assert (layer.format, layer.activations, layer.weight.requires_grad) == ("mxfp8", "bf16", False)
    with pytest.raises(ValueError, match=r"^mxfp8 weights take activations mxfp8 or bf16, got 'int8'$"):
        QuantLinear.from_linear(source, "mxfp8", activations="int8")


REFUSED = {
    "there is no layer of format 'fp4': the formats are channel, int8, int8_asymmetric, block128, block32, group128, nvfp4, mxfp4, mxfp6, mxfp8": (
        "fp4",
        {},
    ),
    "mxfp6 weights take activations mxfp8 or bf16, got 'mxfp6'": ("mxfp6", {"activations": "mxfp6"}),
    "nvfp4 activations of nvfp4 weights need the input's absmax, from a Calibration: input_absmax is None": (
        "nvfp4",
        {"activations": "nvfp4"},
    ),
    "bf16 activations of nvfp4 weights take no absmax of the input: input_absmax is 2.0": (
        "nvfp4",
        {"input_absmax": 2.0},
    ),
    "the input's absmax is 0.0, expected a finite number above zero: calibrate on real inputs": (
        "nvfp4",
        {"activations": "nvfp4", "input_absmax": 0.0},
    ),
    "bias is [3], expected [72] or [1, 72]": ("channel", {"bias": torch.zeros(3)}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_go_together(sentence: str) -> None:
    format, more = REFUSED[sentence]
    weight = quantize_weight(drawn(N, K), format if format != "fp4" else "nvfp4")
    object.__setattr__(weight, "format", format)
    with pytest.raises(ValueError) as error:
        QuantLinear(weight, more.pop("bias", None), **more)
    assert str(error.value) == sentence


@pytest.mark.parametrize("format", ["block128", "group128"])
def test_blocks_want_whole_groups_of_activations(format: str) -> None:
    with pytest.raises(ValueError) as error:
        QuantLinear(quantize_weight(drawn(8, 192), format))
    assert str(error.value) == (
        f"{format} multiplies activations in groups of 128 columns, and the layer has K = 192: use 'channel', or pad K to 256"
    )


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(64, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down(torch.relu(self.up(x))))


@pytest.mark.parametrize(("how", "wanted"), [("max", 4.0), ("average", 0.9 * 2.0 + 0.1 * 4.0)])
def test_calibration_notes_the_range_of_inputs(how: str, wanted: float) -> None:
    model = Mlp()
    with Calibration(model, how) as seen:
        for largest in (2.0, 4.0):
            model(torch.full((3, 64), -largest))
        model(torch.empty(0, 64))
    assert seen.absmax.keys() == {"up", "down", "head"}
    assert float(seen.absmax["up"]) == pytest.approx(wanted)
    model(torch.full((3, 64), 100.0))
    assert float(seen.absmax["up"]) == pytest.approx(wanted), "nothing is noted afterwards"


def test_calibration_is_by_a_way_that_exists() -> None:
    with pytest.raises(ValueError, match=r"^calibration is by 'max' or 'average', got 'median'$"):
        Calibration(Mlp(), "median")


def test_a_module_is_quantised_in_place() -> None:
    torch.manual_seed(0)
    model, x = Mlp().bfloat16(), drawn(3, 64)
    before = model(x)
    with Calibration(model) as seen:
        model(x)
    errors = quantize_module(model, "nvfp4", activations="nvfp4", keep=["head"], input_absmax=seen.absmax)
    assert {error.name for error in errors} == {"up", "down"} and errors[0].weights >= errors[1].weights
    assert isinstance(model.up, QuantLinear) and type(model.head) is nn.Linear and model.down.bias is None
    assert (model(x) - before).norm() < 0.4 * before.norm()
    with pytest.raises(ValueError, match=r"^head: nvfp4 activations of nvfp4 weights need the input's absmax"):
        quantize_module(model, "nvfp4", activations="nvfp4")


class Tied(nn.Module):
    """A layer, and a module with a layer, that have two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.body = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64, bias=False))
        self.same, self.again = self.up, self.body

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.same(self.body(self.up(x))))


def test_a_layer_of_two_names_stays_one() -> None:
    torch.manual_seed(0)
    model, x = Tied().bfloat16(), drawn(3, 64)
    before = model(x)
    with Calibration(model) as seen:
        model(x)
    errors = quantize_module(model, "nvfp4", activations="nvfp4", input_absmax=seen.absmax)
    assert sorted(error.name for error in errors) == ["body.0", "up"]
    assert isinstance(model.up, QuantLinear) and model.same is model.up
    assert isinstance(model.body[0], QuantLinear) and model.again is model.body
    assert (model(x) - before).norm() < 0.5 * before.norm()
    for keep in ("up", "same", "s*"):
        model = Tied()
        assert [error.name for error in quantize_module(model, "nvfp4", keep=[keep])] == ["body.0"]
        assert type(model.up) is nn.Linear and model.same is model.up
    absmax = {"same": torch.ones(1), "again.0": torch.ones(1)}
    quantize_module(Tied(), "nvfp4", activations="nvfp4", input_absmax=absmax)


@pytest.mark.parametrize("names", [["up"], ["same"], ["up", "same"]])
def test_a_checkpoints_layer_of_two_names_stays_one(names: list[str], tmp_path: Path) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    tensors = {name + part: tensor for name in names for part, tensor in stored.items()}
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", tensors))
    model = nn.ModuleDict({"up": nn.Linear(192, 136, device="meta")})
    model["same"] = model["up"]
    assert sorted(load_linears(model, checkpoint)) == sorted(names)
    assert isinstance(model["up"], QuantLinear) and model["same"] is model["up"]


@pytest.mark.parametrize(("project", "format"), [key for key in LAYERS if not key[0].startswith("gpt-oss")])
def test_it_is_read_from_any_projects_checkpoint(project: str, format: str, tmp_path: Path) -> None:
    stored, values = LAYERS[project, format]
    if format in ("block128", "group128"):  # the op wants whole groups: the last one has zeros
        values = nn.functional.pad(values, (0, 64))
        codes = nn.functional.pad(stored[".weight"].view(torch.uint8), (0, 64))
        stored = stored | {".weight": codes.view(torch.float8_e4m3fn)}
    tensors = {"m.up" + part: tensor for part, tensor in stored.items()} | {"m.up.bias": torch.ones(136).bfloat16()}
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", tensors))
    x = drawn(2, values.shape[1])
    model = nn.ModuleDict({"up": nn.Linear(values.shape[1], 136, device="meta")})
    assert load_linears(model, checkpoint, prefix="m.", format=format) == ["up"]
    wanted = x.float() @ values.t() + 1
    assert (model["up"](x).float() - wanted).norm() <= 0.04 * wanted.norm()


def test_what_was_packed_is_kept_beside_the_checkpoint(tmp_path: Path) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    tensors = {"up" + part: tensor for part, tensor in stored.items()}
    checkpoint, x = open_checkpoint(save(tmp_path / "a.safetensors", tensors)), drawn(2, 192)
    out = QuantLinear.from_checkpoint(checkpoint, "up")(x)
    folder = tmp_path / packed.CACHE
    assert not folder.exists()
    for _ in range(2):
        assert torch.equal(QuantLinear.from_checkpoint(checkpoint, "up", cache=True)(x), out)
        (kept,) = folder.iterdir()
    packed.write_packed(replace(packed.read_packed(kept), n=1), kept)
    assert QuantLinear.from_checkpoint(checkpoint, "up", cache=True).out_features == 1, "it is read from there"
    changed = open_checkpoint(save(tmp_path / "a.safetensors", {**tensors, "extra": torch.ones(1)}))
    assert torch.equal(QuantLinear.from_checkpoint(changed, "up", cache=True)(x), out), "another file, another digest"
    before = (tmp_path / "a.safetensors").stat()
    other = {**tensors, "extra": torch.ones(1), "up.weight": tensors["up.weight"] ^ 1}
    changed = open_checkpoint(save(tmp_path / "a.safetensors", other))
    os.utime(tmp_path / "a.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert changed.files[0].stat().st_size == before.st_size
    assert not torch.equal(QuantLinear.from_checkpoint(changed, "up", cache=True)(x), out), "as large, and later"
    QuantLinear.from_checkpoint(changed, "up", cache=True, activations="nvfp4", input_absmax=1.0)
    assert len(list(folder.iterdir())) == 4
    QuantLinear.from_checkpoint(changed, "up", cache=True, activations="bf16", format="nvfp4")
    assert len(list(folder.iterdir())) == 4, "what is the default is the same file where it is named"


def test_a_full_disk_while_packing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", {"up" + part: t for part, t in stored.items()}))
    packed.keep_packed(checkpoint, "bf16")
    (kept,) = (tmp_path / packed.CACHE).iterdir()
    size = kept.stat().st_size

    def refused(*_: object, errno: int = ENOSPC) -> None:
        raise OSError(errno, os.strerror(errno))

    for call in ("fsync", "mkdir"):
        shutil.rmtree(kept.parent)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refused)
            with pytest.raises(CheckpointError) as error:
                QuantLinear.from_checkpoint(checkpoint, "up", cache=True)
            wanted = f"no space is left for {kept}: it takes {size} bytes, and nothing of it was written; free some and do the same again"
            assert str(error.value) == wanted
            with pytest.raises(CheckpointError) as error:
                packed.keep_packed(checkpoint, "bf16")
            assert str(error.value) == f"up: {wanted}"
        assert not list(tmp_path.glob(f"{packed.CACHE}/.*")) + list(tmp_path.glob(f"{packed.CACHE}/*")), "no part of it"
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", partial(refused, errno=EROFS))
        with pytest.raises(CheckpointError) as error:
            QuantLinear.from_checkpoint(checkpoint, "up", cache=True)
        assert str(error.value) == f"{kept} cannot be written: Read-only file system; nothing of it was"
    assert packed.keep_packed(checkpoint, "bf16") == ["up"] and kept.stat().st_size == size


def test_what_is_packed_already_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", {"up" + part: t for part, t in stored.items()}))
    packed.keep_packed(checkpoint)
    monkeypatch.setattr(Stored, "read", None)
    assert packed.keep_packed(checkpoint) == packed.keep_packed(checkpoint, "bf16") == ["up"]


@pytest.mark.parametrize("told", ["[" * 10_000, "3", "[]", "{}", '{"packing": 3}'])
def test_packed_files_that_tell_something_else(told: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    packed.write_tensors(path, {"weight": drawn(2, 2)}, {})
    text = path.read_bytes()[8:].replace(b'"{}"', json.dumps(told).encode())
    size = text.index(b"}}") + 2
    path.write_bytes(size.to_bytes(8, "little") + text[:size] + bytes(8))
    with pytest.raises(
        CheckpointError, match=r"a\.safetensors was packed for another kernel set \((None|3), and this one"
    ):
        packed.read_packed(path)
    told = {"format": "nvfp4", "activations": "bf16", "n": 2, "k": 2, "packing": recipes.PACKING}
    for tensors, more in (
        ({"weight": drawn(2, 2)}, {}),
        ({"weight": drawn(2), "weight_scale": drawn(2)}, {"format": [3]}),
    ):
        packed.write_tensors(path, tensors, told | more)
        with pytest.raises(CheckpointError) as error:
            packed.read_packed(path)
        assert str(error.value) == (
            f"{path} has no layer's weight, or does not tell of which kind: pack it anew from the checkpoint"
        )


def test_the_calibrated_range_comes_with_the_checkpoint(tmp_path: Path) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    tensors = {"up" + part: tensor for part, tensor in stored.items()} | {"up.input_scale": torch.tensor(4 / 2688)}
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", tensors))
    layer = QuantLinear.from_checkpoint(checkpoint, "up", activations="nvfp4")
    assert float(layer.input_global_scale) == pytest.approx(2688 / 4)
    assert float(layer.alpha) == pytest.approx(0.5 * 4 / 2688)


def test_layers_that_a_checkpoint_or_a_model_lacks(tmp_path: Path) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    tensors = {"up" + part: tensor for part, tensor in stored.items()} | {"down.weight": drawn(2, 3)}
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", tensors))
    with pytest.raises(CheckpointError, match=r"a\.safetensors has layers that the model does not have: up$"):
        load_linears(nn.ModuleDict({"other": nn.Linear(192, 136)}), checkpoint)
    with pytest.raises(CheckpointError, match=r"has no quantised layer down: it has \.weight BF16 \[2, 3\]$"):
        QuantLinear.from_checkpoint(checkpoint, "down")
    with pytest.raises(CheckpointError, match=r"has no quantised layer left: it has nothing of that name$"):
        QuantLinear.from_checkpoint(checkpoint, "left")
    experts, _ = LAYERS["gpt-oss", "mxfp4"]
    checkpoint = open_checkpoint(save(tmp_path / "b.safetensors", {"x" + part: t for part, t in experts.items()}))
    with pytest.raises(CheckpointError) as error:
        QuantLinear.from_checkpoint(checkpoint, "x")
    assert str(error.value) == "x has 2 experts in one tensor, and none was named: name one from 0 to 1"
    with pytest.raises(CheckpointError) as error:
        QuantLinear.from_checkpoint(checkpoint, "x", expert=2)
    assert str(error.value) == "x has 2 experts in one tensor, and expert 2 was asked for: name one from 0 to 1"
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError) as error:
        QuantLinear.from_checkpoint(checkpoint, "up", expert=0)
    assert str(error.value) == "up has no experts in one tensor, and expert 0 was asked for: name none"


@pytest.mark.parametrize(
    ("project", "layer", "bias"),
    [
        ("gpt-oss", "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.gate_up_proj_bias"),
        ("gpt-oss-torch", "block.0.mlp.mlp1_weight", "block.0.mlp.mlp1_bias"),
    ],
)
def test_each_expert_of_a_tensor_is_a_layer(project: str, layer: str, bias: str, tmp_path: Path) -> None:
    stored, values = LAYERS[project, "mxfp4"]
    if project == "gpt-oss":
        values = values.transpose(1, 2)  # now [E, N, K] of both
    biases = drawn(2, values.shape[1])
    tensors = {layer + part: tensor for part, tensor in stored.items()} | {bias: biases}
    checkpoint, x = open_checkpoint(save(tmp_path / "a.safetensors", tensors)), drawn(5, values.shape[2])
    for expert in (0, 1):
        for cache in (False, True, True):
            made = QuantLinear.from_checkpoint(checkpoint, layer, expert=expert, cache=cache)
            wanted = x.float() @ values[expert].t() + biases[expert].float()
            assert (made(x).float() - wanted).norm() <= 0.005 * wanted.norm()
    assert len(list((tmp_path / packed.CACHE).iterdir())) == 2, "each has a file"
