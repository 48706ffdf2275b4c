"""Checkpoints whose layers are pruned to 2:4 sparse nvfp4: written, read again, reported, refused and resumed."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gemmill.checkpoints.convert import convert
from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.sparse import sparse_experts
from gemmill.checkpoints.steps import Asked, Step
from gemmill.quantize import prune_to_fp4, quantize_checkpoint, quantize_weight
from stored import save

N, K, E = 48, 96, 3
GATE_UP = ("gate_proj", "up_proj")
SPARSE = Asked(to="nvfp4_2to4")


def drawn(seed: int) -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed)).bfloat16()


def layer(expert: int, part: str) -> str:
    return f"layers.0.mlp.experts.{expert}.{part}"


WEIGHTS = {layer(e, part): drawn(10 * e + i) for e in range(E) for i, part in enumerate(GATE_UP)}
NAMES = [[layer(e, part) for part in GATE_UP] for e in range(E)]


def source(tmp_path: Path, **more: Tensor) -> Path:
    """A file of float experts, a norm and a router."""
    tensors = {f"{name}.weight": weight for name, weight in WEIGHTS.items()}
    tensors |= {"layers.0.norm.weight": torch.ones(K), "layers.0.mlp.gate.weight": torch.ones(E, K)}
    return save(tmp_path / "in.safetensors", tensors | more)


def test_experts_are_those_of_pruning_in_memory(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    made = quantize_checkpoint(source(tmp_path), out, "nvfp4_2to4")
    stored = open_checkpoint(out)
    assert stored.read("layers.0.mlp.gate.weight").shape == (E, K), "routers stay"
    assert stored.read(f"{NAMES[0][0]}.comp_T").shape == (K // 4, N)
    found = sparse_experts(stored, NAMES)
    wanted, errors = prune_to_fp4([[WEIGHTS[name] for name in parts] for parts in NAMES])
    assert found.parts == 2 and torch.equal(found.weight_scale_2, wanted.weight_scale_2)
    for e in range(E):
        assert torch.equal(found.values(e), wanted.values(e))
    told = {each.name: each.weights for each in made.layers}
    assert told.keys() == WEIGHTS.keys(), "an error for each layer of each expert"
    mean = sum(told[name] for name in NAMES[0]) / 2
    assert abs(mean - errors[0].weights) < 0.02 * errors[0].weights
    assert json.loads(made.report.read_text())["asked"]["to"] == "nvfp4_2to4"


def test_codes_of_nvfp4_are_kept(tmp_path: Path) -> None:
    floats, dense, out = source(tmp_path), tmp_path / "dense.safetensors", tmp_path / "out.safetensors"
    quantize_checkpoint(floats, dense, "nvfp4", names="modelopt")
    quantize_checkpoint(dense, out, "nvfp4_2to4")
    each = [[quantize_weight(WEIGHTS[name], "nvfp4") for name in parts] for parts in NAMES]
    wanted, _ = prune_to_fp4(each)
    found = sparse_experts(open_checkpoint(out), NAMES)
    assert all(torch.equal(found.values(e), wanted.values(e)) for e in range(E))


def test_rescaling_lessens_the_error(tmp_path: Path) -> None:
    path = source(tmp_path)
    plain, fitted = (
        quantize_checkpoint(path, tmp_path / f"{rescale}.safetensors", "nvfp4_2to4", rescale=rescale).layers
        for rescale in (False, True)
    )
    errors = [{each.name: each.weights for each in layers} for layers in (plain, fitted)]
    assert all(errors[1][name] <= errors[0][name] for name in WEIGHTS)


class Stops:
    """An observer that ends a conversion after two layers, and tells how far it was."""

    def __init__(self, after: int) -> None:
        self.left, self.done = after, -1

    def planned(self, total: int, done: int) -> None:
        self.done = done

    def advanced(self, step: Step) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_conversion_goes_on_where_it_was(tmp_path: Path) -> None:
    path, out = source(tmp_path), tmp_path / "out.safetensors"
    with pytest.raises(KeyboardInterrupt):
        convert(path, out, SPARSE, observer=Stops(3))
    assert not out.exists(), "a file appears whole"
    convert(path, out, SPARSE, observer=(second := Stops(100)))
    whole = tmp_path / "whole.safetensors"
    convert(path, whole, SPARSE)
    assert second.done > 0 and out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("asked", "more", "said"),
    [
        (
            SPARSE,
            {"odd.weight": torch.ones(4, 40)},
            "odd.weight is [4, 40]: nvfp4_2to4 takes [N, K] with K a multiple of 32; leave it as it is with --keep 'odd.weight'",
        ),
        (
            SPARSE,
            {"nan.weight": torch.full((4, 32), torch.nan)},
            "nan: weight [0, 0] is nan: weights that are quantised are finite",
        ),
        (
            Asked(to="nvfp4_2to4", names="modelopt"),
            {},
            "modelopt has no names for nvfp4_2to4: leave --names out",
        ),
        (
            Asked(to="nvfp4", rescale=True),
            {},
            "rescaling is of pruned weights, and they become nvfp4: convert to nvfp4_2to4, or leave it out",
        ),
    ],
)
def test_what_cannot_be_pruned(tmp_path: Path, asked: Asked, more: dict[str, Tensor], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        convert(source(tmp_path, **more), tmp_path / "out.safetensors", asked)
    assert str(error.value).startswith(said)


def test_a_layer_that_was_not_pruned(tmp_path: Path) -> None:
    path = source(tmp_path)
    with pytest.raises(CheckpointError) as error:
        sparse_experts(open_checkpoint(path), NAMES)
    name = NAMES[0][0]
    assert (
        str(error.value)
        == f"{path} has no {name}.comp_T: {name} is no layer of nvfp4_2to4, which `gemmill convert` makes"
    )
