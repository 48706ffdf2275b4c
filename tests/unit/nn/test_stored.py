"""`from_pretrained` of checkpoints that other projects, or `gemmill convert` under their names, quantised."""

import json
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import compressed_checkpoints  # noqa: E402
from gemmill.checkpoints import CheckpointError  # noqa: E402
from gemmill.nn import QuantLinear  # noqa: E402
from gemmill.nn.stored import serve_stored, stored_config  # noqa: E402

TOKENS = torch.arange(12, device="cpu").view(2, 6)
READ = [
    ("compressed-tensors", "channel", 0.1),
    ("compressed-tensors", "block128", 0.1),
    ("compressed-tensors", "int8", 0.1),
    ("compressed-tensors", "int8_asymmetric", 0.1),
    ("compressed-tensors", "nvfp4", 0.3),
    ("compressed-tensors", "mxfp4", 0.4),
    ("compressed-tensors", "mxfp8", 0.1),
    ("modelopt", "nvfp4", 0.3),
    ("deepseek", "block128", 0.1),
]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    made = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return made


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("floats")
    model().save_pretrained(folder)
    return folder


def load(folder: Path, **more: object) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).float().norm() / expected.float().norm())


@pytest.mark.parametrize(("project", "format", "most"), READ)
@torch.no_grad()
def test_what_convert_writes(gemmill, floats, tmp_path, project: str, format: str, most: float) -> None:
    folder = tmp_path / "stored"
    told = gemmill("convert", floats, folder, "--to", format, "--names", project, "--keep", "lm_head*")
    assert told.code == 0, told.err
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] != "gemmill"
    made, info = load(folder, config=stored_config(folder), output_loading_info=True)
    assert not any(info.values()), "no key is missing or left over"
    layers = {name: layer for name, layer in made.named_modules() if isinstance(layer, QuantLinear)}
    assert len(layers) == 14 and {layer.format for layer in layers.values()} == {format}
    assert type(made.lm_head) is torch.nn.Linear and made.model.layers[0].self_attn.q_proj.bias.dtype is torch.bfloat16
    logits = made(TOKENS).logits
    assert 0 < error(logits, load(floats)(TOKENS).logits) < most
    made.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(TOKENS).logits, logits)


@pytest.mark.parametrize(
    ("scheme", "format", "activations", "most"),
    [
        ("FP8_DYNAMIC", "channel", None, 0.02),
        ("FP8_BLOCK", "block128", None, 0.02),
        ("W8A8", "int8", None, 0.02),
        ("NVFP4A16", "nvfp4", None, 0.02),
        ("NVFP4", "nvfp4", "nvfp4", 0.02),
        ("MXFP4A16", "mxfp4", None, 0.02),
        ("MXFP8", "mxfp8", None, 0.02),
    ],
)
@torch.no_grad()
def test_the_logits_are_those_of_compressed_tensors(tmp_path, scheme, format, activations, most) -> None:
    """Written by that library, and loaded by transformers with it and with gemmill."""
    pytest.importorskip("compressed_tensors")
    compressed_checkpoints.write(model(), scheme, tmp_path)
    made, info = load(tmp_path, config=stored_config(tmp_path, activations=activations), output_loading_info=True)
    assert not any(info.values())
    assert {layer.format for layer in made.modules() if isinstance(layer, QuantLinear)} == {format}
    logits = made(TOKENS).logits
    assert error(logits, load(tmp_path)(TOKENS).logits) < most
    assert error(logits, model()(TOKENS).logits) < 0.5


@torch.no_grad()
def test_a_quant_method_that_gemmill_serves_from_now_on(gemmill, floats, tmp_path, monkeypatch) -> None:
    gemmill("convert", floats, tmp_path, "--to", "channel", "--names", "compressed-tensors", "--keep", "lm_head*")
    known = transformers.quantizers.auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    monkeypatch.setitem(known, "compressed-tensors", known["compressed-tensors"])
    serve_stored("compressed-tensors")
    made = load(tmp_path)
    assert sum(isinstance(layer, QuantLinear) for layer in made.modules()) == 14
    assert torch.equal(made(TOKENS).logits, load(tmp_path, config=stored_config(tmp_path))(TOKENS).logits)


@torch.no_grad()
def test_a_model_without_its_head(gemmill, floats, tmp_path) -> None:
    """Names in the checkpoint have a prefix that the model's have not."""
    gemmill("convert", floats, tmp_path, "--to", "channel", "--names", "compressed-tensors", "--keep", "lm_head*")
    whole = load(tmp_path, config=stored_config(tmp_path))
    base = transformers.AutoModel.from_pretrained(tmp_path, config=stored_config(tmp_path), dtype=torch.bfloat16)
    assert torch.equal(base(TOKENS).last_hidden_state, whole.model(TOKENS).last_hidden_state)


def test_layers_that_the_model_has_not_or_gemmill_does_not_read(gemmill, floats, tmp_path) -> None:
    gemmill("convert", floats, tmp_path, "--to", "channel", "--names", "compressed-tensors", "--keep", "lm_head*")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up" not in name}
    save_file(kept | {"model.layers.1.mlp.up_proj.weight_packed": torch.zeros(512, 32, dtype=torch.int32)}, path)
    with pytest.raises(
        CheckpointError, match=r"does not read \(model.layers.1.mlp.up_proj.weight_packed\): it reads FP8"
    ):
        load(tmp_path, config=stored_config(tmp_path))
    more = {
        f"model.layers.7.mlp.up_proj.{part}": tensors[f"model.layers.1.mlp.up_proj.{part}"].clone()
        for part in ("weight", "weight_scale")
    }
    save_file(tensors | more, path)
    with pytest.raises(
        CheckpointError, match=r"LlamaForCausalLM has no nn.Linear: model.layers.7.mlp.up_proj; transformers"
    ):
        load(tmp_path, config=stored_config(tmp_path))


def test_refusals(floats, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="has no quantised layer that gemmill reads: load it without"):
        load(floats, config=stored_config(floats))
    pytest.importorskip("compressed_tensors")
    compressed_checkpoints.write(model(), "W4A16", tmp_path)
    with pytest.raises(CheckpointError, match="has no quantised layer that gemmill reads"):
        load(tmp_path, config=stored_config(tmp_path))
