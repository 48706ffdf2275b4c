"""`quantization_config` of config.json: read as each project writes it, written as its readers want it.

The configs below are put together by hand. compressed-tensors: presets of `quantization/quant_scheme.py`, the fields of
`quantization/quant_config.py`. ModelOpt: the keys that vLLM 0.33.0's `quantization/modelopt.py` takes, of either file. DeepSeek V3 and V4,
gpt-oss: config.json of the models. Only keys that a reader looks at are held.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmill.checkpoints.convert import convert
from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.stated import CONFIG, stated_format
from gemmill.checkpoints.steps import Asked
from stored import layers, save

LAYERS = layers()
FLOAT4: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True}
FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
FIXED = {"dynamic": False}


def of_compressed_tensors(format: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


def in_blocks(sides: list[int]) -> dict[str, Any]:
    weights = FLOAT8 | FIXED | {"strategy": "block", "block_structure": sides}
    inputs = FLOAT8 | {"strategy": "group", "group_size": sides[1], "dynamic": True}
    return of_compressed_tensors("float-quantized", weights, inputs)


GROUP16 = {"strategy": "tensor_group", "group_size": 16}
GROUP32 = {"strategy": "group", "group_size": 32}
GROUP128 = {"strategy": "group", "group_size": 128}
FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
STATED = {
    ("compressed-tensors", "nvfp4"): of_compressed_tensors("nvfp4-pack-quantized", FLOAT4 | FIXED | GROUP16, None),
    ("compressed-tensors", "mxfp4"): of_compressed_tensors("mxfp4-pack-quantized", FLOAT4 | FIXED | GROUP32, None),
    ("compressed-tensors", "mxfp8"): of_compressed_tensors(
        "mxfp8-quantized", FLOAT8 | FIXED | GROUP32, FLOAT8 | GROUP32 | {"dynamic": True}
    ),
    ("compressed-tensors", "channel"): of_compressed_tensors(
        "float-quantized", FLOAT8 | FIXED | {"strategy": "channel"}, FLOAT8 | {"strategy": "token", "dynamic": True}
    ),
    ("compressed-tensors", "int8"): of_compressed_tensors(
        "int-quantized", INT8 | FIXED | {"strategy": "channel"}, INT8 | {"strategy": "token", "dynamic": True}
    ),
    ("compressed-tensors", "int8_asymmetric"): of_compressed_tensors(
        "int-quantized",
        INT8 | FIXED | {"strategy": "channel", "symmetric": False},
        INT8 | {"strategy": "token", "dynamic": True},
    ),
    ("compressed-tensors", "block128"): in_blocks([128, 128]),
    ("compressed-tensors", "group128"): of_compressed_tensors(
        "float-quantized", FLOAT8 | FIXED | GROUP128, FLOAT8 | GROUP128 | {"dynamic": True}
    ),
    ("modelopt", "nvfp4"): {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16},
    ("deepseek", "block128"): FP8_BLOCKS,
    ("deepseek", "block32"): FP8_BLOCKS | {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
    ("deepseek-v4", "block32"): FP8_BLOCKS | {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
    ("gpt-oss", "mxfp4"): {"quant_method": "mxfp4"},
}
OTHERS = {
    "modelopt of both sides": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    "modelopt in small letters": ({"quant_method": "modelopt_fp4", "quant_algo": "nvfp4"}, "nvfp4"),
    "other blocks": (FP8_BLOCKS | {"weight_block_size": [64, 64]}, None),
    "blocks of 32 of compressed-tensors": (in_blocks([32, 32]), "block32"),
    "other blocks of compressed-tensors": (in_blocks([64, 64]), None),
    "oblong blocks": (FP8_BLOCKS | {"weight_block_size": [1, 32]}, None),
    "gptq": ({"quant_method": "gptq", "bits": 4}, None),
    "groups of several kinds": (
        STATED["compressed-tensors", "channel"]
        | {"config_groups": {str(i): {"weights": {"strategy": s}} for i, s in enumerate(("channel", "block"))}},
        None,
    ),
    "no groups": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, None),
    "no dictionary": ("fp8", None),
    "a list for a strategy": (
        STATED["compressed-tensors", "channel"] | {"config_groups": {"0": {"weights": {"strategy": ["channel"]}}}},
        None,
    ),
}
NAME = "model.layers.3.mlp.experts.down_proj"


def folder_of(path: Path, tensors: dict[str, torch.Tensor], config: object | None) -> Path:
    path.mkdir()
    save(path / "model.safetensors", tensors)
    if config is not None:
        (path / CONFIG).write_text(json.dumps(config))
    return path


def stated_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / CONFIG).read_text())


def assert_holds(found: Any, wanted: Any) -> None:
    """Every key of `wanted`, at any depth."""
    if not isinstance(wanted, dict):
        assert found == wanted
        return
    for key, value in wanted.items():
        assert key in found, key
        assert_holds(found[key], value)


@pytest.mark.parametrize(("project", "format"), STATED)
def test_it_is_written_for_what_a_conversion_made(project: str, format: str, tmp_path: Path) -> None:
    _, values = LAYERS[project, format]
    key = NAME if project == "gpt-oss" else f"{NAME}.weight"
    tensors = {key: values.bfloat16(), "lm_head.weight": torch.ones(4, 32), "model.norm.weight": torch.ones(4)}
    config = {"model_type": "x", "hidden_size": 192, "quantization_config": {"quant_method": "old"}}
    source = folder_of(tmp_path / "in", tensors, config)
    made = convert(source, tmp_path / "out", Asked(to=format, names=project))
    found = stated_in(tmp_path / "out")
    stated = found.pop("quantization_config")
    assert found == {"model_type": "x", "hidden_size": 192} and made.is_stated
    assert_holds(stated, STATED[project, format])
    left_out = stated["ignore" if "ignore" in stated else "modules_to_not_convert"]
    assert left_out == ["lm_head"], "matrices that stay"
    assert open_checkpoint(tmp_path / "out").stated == format


@pytest.mark.parametrize("kind", [*STATED, *OTHERS])
def test_it_is_read(kind: Any, tmp_path: Path) -> None:
    config, format = OTHERS[kind] if kind in OTHERS else (STATED[kind], kind[1])
    (tmp_path / CONFIG).write_text(json.dumps({"quantization_config": config}))
    assert stated_format(tmp_path) == format
    (tmp_path / CONFIG).write_text("{}")
    assert stated_format(tmp_path) is None


def test_an_older_file_of_modelopts_is_read(tmp_path: Path) -> None:
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    assert stated_format(tmp_path) == "nvfp4"


@pytest.mark.parametrize("told", [[], "NVFP4", None, 3])
def test_an_older_file_that_tells_nothing(told: object, tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": told}))
    assert stated_format(tmp_path) is None


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"\xff\xfe", b"3"])
def test_a_config_that_is_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_bytes(text)
    with pytest.raises(CheckpointError) as error:
        stated_format(tmp_path)
    assert str(error.value) == f"{tmp_path}/config.json is no JSON object: copy it again, or take it away"


def test_deepseek_v4_names_its_experts_type_too(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", {"a.experts.0.w1.weight": torch.ones(4, 32)}, {})
    convert(source, tmp_path / "out", Asked(to="mxfp4", names="deepseek-v4"))
    found = stated_in(tmp_path / "out")
    assert found["expert_dtype"] == "fp4"
    assert_holds(found["quantization_config"], FP8_BLOCKS | {"scale_fmt": "ue8m0"})
    convert(tmp_path / "out", tmp_path / "back", Asked(to="bf16"))
    assert stated_in(tmp_path / "back") == {}, "nothing is quantised"


@pytest.mark.parametrize("project", ["compressed-tensors", "modelopt"])
def test_ranges_of_inputs_make_activations_nvfp4(project: str, tmp_path: Path) -> None:
    stored, _ = LAYERS["modelopt", "nvfp4"]
    tensors = {"up" + part: tensor for part, tensor in stored.items()}
    ranged = folder_of(tmp_path / "in", tensors | {"up.input_scale": torch.tensor(0.5)}, {})
    convert(ranged, tmp_path / "out", Asked(to="nvfp4", names=project))
    stated = stated_in(tmp_path / "out")["quantization_config"]
    group = stated["config_groups"]["group_0"]
    assert_holds(group["input_activations"], FLOAT4 | GROUP16 | {"dynamic": "local"})
    assert stated.get("quant_algo", "NVFP4") == "NVFP4"
    one_without = tensors | {"down" + part: tensor for part, tensor in stored.items()}
    some = folder_of(tmp_path / "some", one_without | {"up.input_scale": torch.tensor(0.5)}, {})
    convert(some, tmp_path / "weights", Asked(to="nvfp4", names=project))
    stated = stated_in(tmp_path / "weights")["quantization_config"]
    assert stated["config_groups"]["group_0"]["input_activations"] is None, "not every layer has one"


def test_it_decides_where_shapes_do_not(tmp_path: Path) -> None:
    """e4m3 with a scale for each row, of one block of 128 rows: channel, or block128 in three projects' names."""
    tensors = {"a.weight": torch.ones(1, 96).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(1, 1)}
    silent = folder_of(tmp_path / "silent", tensors, {})
    with pytest.raises(CheckpointError) as error:
        convert(silent, tmp_path / "x", Asked(to="bf16"))
    assert str(error.value) == (
        "a may be channel, block128 by its shapes: say which by --from of `gemmill convert`, or by format= where a layer is loaded"
    )
    for format in ("channel", "block128"):
        config = {"quantization_config": STATED["compressed-tensors", format]}
        told = folder_of(tmp_path / format, tensors, config)
        convert(told, tmp_path / f"{format}-decoded", Asked(to="bf16"))
        assert open_checkpoint(told).stated == format
        with pytest.raises(CheckpointError, match=f"^a is {format} already: "):
            convert(told, tmp_path / "y", Asked(to="nvfp4"))


def test_layers_of_several_formats_are_not_stated(gemmill, tmp_path: Path) -> None:
    stored, _ = LAYERS["compressed-tensors", "channel"]
    tensors = {"kept" + part: tensor for part, tensor in stored.items()} | {"a.weight": torch.ones(4, 32)}
    source = folder_of(tmp_path / "in", tensors, {"quantization_config": {}, "model_type": "x"})
    done = gemmill("convert", source, tmp_path / "out", "--to", "nvfp4", "--keep", "kept*")
    assert done.code == 0, done.err
    assert stated_in(tmp_path / "out") == {"model_type": "x"}
    assert (
        f"gemmill: {tmp_path}/out has layers of several formats, which config.json cannot state: it says nothing of quantisation\n"
    ) in done.err


def test_what_is_no_config_is_told_before_anything_is_written(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", {"a.weight": torch.ones(4, 32)}, None)
    convert(source, tmp_path / "plain", Asked(to="nvfp4"))
    assert not (tmp_path / "plain" / CONFIG).exists()
    for text in (b"{", b"[]", b"\xff"):
        (source / CONFIG).write_bytes(text)
        with pytest.raises(CheckpointError) as error:
            convert(source, tmp_path / "out", Asked(to="nvfp4"))
        assert str(error.value) == f"{source}/config.json is no JSON object: copy it again, or take it away"
    (source / CONFIG).write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CONFIG).write_text("{}")
    with pytest.raises(CheckpointError, match=r"out/config\.json exists: remove it, or name another output$"):
        convert(source, tmp_path / "out", Asked(to="nvfp4"))
