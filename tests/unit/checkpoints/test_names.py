"""Layers as each project stores them (`stored.layers`) are read exactly, and written with the same bytes."""

from pathlib import Path

import pytest
import torch

from gemmill.checkpoints.convert import convert
from gemmill.checkpoints.file import CheckpointError, read_header
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.names import PROJECTS, SPELLINGS, spelling_of
from gemmill.checkpoints.steps import Asked
from stored import K, N, layers, save

LAYERS = layers()
NAME = "model.layers.3.mlp.experts.down_proj"
NAMES = {"gpt-oss": NAME, "gpt-oss-torch": "block.3.mlp.mlp2_weight"}
"""Of experts in one tensor, as their projects call them."""


def name_of(project: str) -> str:
    """The layer's."""
    return NAMES.get(project, NAME)


def weight_key(project: str) -> str:
    """Of the layer where it is not quantised."""
    return NAMES.get(project, f"{NAME}.weight")


def test_every_spelling_that_is_written_has_a_layer() -> None:
    assert {(s.project, s.format) for s in SPELLINGS if not s.read_only} == LAYERS.keys()
    assert {project for project, _ in LAYERS} == set(PROJECTS)


@pytest.mark.parametrize(("project", "format"), LAYERS)
def test_it_is_read_exactly(project: str, format: str, tmp_path: Path) -> None:
    stored, values = LAYERS[project, format]
    tensors = {name_of(project) + part: tensor for part, tensor in stored.items()}
    source = save(tmp_path / "in.safetensors", tensors)
    convert(source, tmp_path / "out.safetensors", Asked(to="bf16", source=format))
    (key,) = (made := open_checkpoint(tmp_path / "out.safetensors"))
    assert key == weight_key(project) and torch.equal(made.read(key), values.bfloat16())
    assert torch.equal(values.bfloat16().float(), values), "the fixture is exact in bf16"


def test_zero_points_tell_a_format(tmp_path: Path) -> None:
    """Nobody says which: codes and scales alone would be read as int8."""
    stored, values = LAYERS["compressed-tensors", "int8_asymmetric"]
    source = save(tmp_path / "in.safetensors", {NAME + part: tensor for part, tensor in stored.items()})
    convert(source, tmp_path / "out.safetensors", Asked(to="bf16"))
    assert torch.equal(open_checkpoint(tmp_path / "out.safetensors").read(f"{NAME}.weight"), values.bfloat16())


@pytest.mark.parametrize(("project", "format"), LAYERS)
def test_it_is_written_with_the_same_bytes(project: str, format: str, tmp_path: Path) -> None:
    stored, values = LAYERS[project, format]
    source = save(tmp_path / "in.safetensors", {weight_key(project): values.bfloat16()})
    made = convert(source, tmp_path / "out.safetensors", Asked(to=format, names=project))
    name = name_of(project)
    assert [(layer.name, layer.weights) for layer in made.layers] == [(name, 0.0)]
    found = read_header(tmp_path / "out.safetensors")
    assert found.keys() == {name + part for part in stored}
    for part, tensor in stored.items():
        written = found[name + part].read()
        assert written.dtype == tensor.dtype and written.shape == tensor.shape, part
        assert torch.equal(written.view(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), part


@pytest.mark.parametrize("inputs", [("modelopt", ".input_scale"), ("compressed-tensors", ".input_global_scale")])
def test_the_range_of_inputs_changes_its_name_and_meaning(inputs: tuple[str, str], tmp_path: Path) -> None:
    project, part = inputs
    stored = {NAME + name: tensor for name, tensor in LAYERS[project, "nvfp4"][0].items()}
    held = torch.tensor(4.0 / 2688) if project == "modelopt" else torch.tensor([2688 / 4.0])
    source = save(tmp_path / "in.safetensors", stored | {NAME + part: held})
    made = convert(source, tmp_path / "x.safetensors", Asked(to="nvfp4", names="lightx2v"))
    assert (made.layers, made.renamed) == ((), 1)
    found = read_header(tmp_path / "x.safetensors")
    assert found[f"{NAME}.input_absmax"].read() == pytest.approx(4.0)
    wanted = {NAME + name: tensor for name, tensor in LAYERS["lightx2v", "nvfp4"][0].items()}
    assert all(torch.equal(found[key].read().float(), tensor.float()) for key, tensor in wanted.items())
    convert(tmp_path / "x.safetensors", tmp_path / "back.safetensors", Asked(to="nvfp4", names=project))
    back = read_header(tmp_path / "back.safetensors")
    assert back[NAME + part].read() == pytest.approx(held) and back[NAME + part].shape == tuple(held.shape)


def test_deepseek_v4s_blocks_have_powers_of_two(tmp_path: Path) -> None:
    codes = torch.ones(N, K).to(torch.float8_e4m3fn)
    scales = torch.tensor([[126, 127], [128, 129]], dtype=torch.uint8)
    tensors = {"attn.wq.weight": codes, "attn.wq.scale": scales.view(torch.float8_e8m0fnu)}
    convert(
        save(tmp_path / "in.safetensors", tensors), tmp_path / "out.safetensors", Asked(to="block128", names="deepseek")
    )
    inverse = read_header(tmp_path / "out.safetensors")["attn.wq.weight_scale_inv"].read()
    assert inverse.tolist() == [[0.5, 1.0], [2.0, 4.0]]


@pytest.mark.parametrize(("format", "side"), [("block128", 128), ("block32", 32)])
@pytest.mark.parametrize("scales", [".weight_scale_inv", ".scale"])
def test_scales_of_blocks_may_be_stored_as_powers_of_two(tmp_path: Path, format: str, side: int, scales: str) -> None:
    shape = -(-N // side), -(-K // side)
    exponents = torch.arange(shape[0] * shape[1], dtype=torch.uint8).reshape(shape) + 120
    codes = torch.ones(N, K).to(torch.float8_e4m3fn)
    tensors = {"a.weight": codes, f"a{scales}": exponents.view(torch.float8_e8m0fnu)}
    made = convert(save(tmp_path / "in.safetensors", tensors), tmp_path / "out.safetensors", Asked(to=format))
    assert (made.layers, made.renamed) == ((), 1)
    found = read_header(tmp_path / "out.safetensors")["a.weight_scale_inv"].read()
    assert torch.equal(found, torch.exp2(exponents.float() - 127))


def test_blocks_that_are_no_powers_of_two_are_refused_under_v4_s_names(tmp_path: Path) -> None:
    scales = torch.ones(-(-N // 32), -(-K // 32))
    scales[1, 2] = 0.75
    tensors = {"a.weight": torch.ones(N, K).to(torch.float8_e4m3fn), "a.weight_scale_inv": scales}
    source = save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(CheckpointError) as error:
        convert(source, tmp_path / "out.safetensors", Asked(to="block32", names="deepseek-v4"))
    assert str(error.value) == (
        "a: deepseek-v4 stores scales as ue8m0, which are powers of two, and the one at [1, 2] is 0.75: names of "
        "deepseek store it; --keep 'a.weight' leaves it as it is"
    )


def test_what_shapes_do_not_tell_is_asked_for(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.zeros(128, 192, dtype=torch.uint8),
        "a.weight_scale": torch.zeros(128, 8, dtype=torch.uint8),
    }
    source = save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(CheckpointError) as error:
        convert(source, tmp_path / "out.safetensors", Asked(to="bf16"))
    assert (
        str(error.value)
        == "a may be mxfp6, mxfp8 by its shapes: say which by --from of `gemmill convert`, or by format= where a layer is loaded"
    )


@pytest.mark.parametrize(
    ("format", "project", "sentence"),
    [
        (
            "nvfp4",
            "nvidia",
            "there are no names of 'nvidia': names are those of compressed-tensors, modelopt, lightx2v, deepseek, deepseek-v4, "
            "gpt-oss, gpt-oss-torch",
        ),
        ("mxfp6", "modelopt", "modelopt has no names for mxfp6: those who have are lightx2v"),
        (
            "block128",
            "deepseek-v4",
            "deepseek-v4 has no names for block128: those who have are deepseek, compressed-tensors, lightx2v",
        ),
    ],
)
def test_names_that_do_not_exist(format: str, project: str, sentence: str) -> None:
    with pytest.raises(CheckpointError) as error:
        spelling_of(format, project)
    assert str(error.value) == sentence


def test_the_first_project_that_has_a_format_names_it() -> None:
    wanted = {"nvfp4": "compressed-tensors", "block128": "deepseek", "mxfp6": "lightx2v", "mxfp4": "compressed-tensors"}
    assert {format: spelling_of(format).project for format in wanted} == wanted
