"""Weights packed for the ops of a layer, and kept: in a file, or beside the checkpoint that they come from."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gemmill.checkpoints.file import WORD_OF, CheckpointError, bytes_of, header_of, read_header, read_metadata
from gemmill.checkpoints.folder import Checkpoint
from gemmill.checkpoints.layers import quantised_layers, read_bias, read_layer, spelling_in, stored_parts
from gemmill.nn.recipes import PACKING, of_input, recipe_of
from gemmill.quantize.weights import QuantizedWeight
from gemmill.writing import write_whole

CACHE = ".gemmill-packed"
"""The folder beside a checkpoint's files."""


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A layer's weight in the order in which kernels read it."""

    format: str
    activations: str
    n: int
    k: int
    tensors: dict[str, Tensor]
    """By the layer's names for them."""


def pack(
    weight: QuantizedWeight, *, activations: str | None = None, input_absmax: Tensor | float | None = None
) -> PackedWeight:
    """A weight for a layer; arguments and errors as of QuantLinear."""
    activations, recipe = recipe_of(weight.format, activations)
    if recipe.calibrated != (input_absmax is not None):
        needs = "need the input's absmax, from a Calibration" if recipe.calibrated else "take no absmax of the input"
        raise ValueError(
            f"{activations} activations of {weight.format} weights {needs}: input_absmax is {input_absmax}"
        )
    tensors = recipe.pack(weight)
    if input_absmax is not None:
        tensors |= of_input(input_absmax, tensors["alpha"])
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return PackedWeight(format=weight.format, activations=activations, n=weight.n, k=weight.k, tensors=tensors)


def load_layer(
    checkpoint: Checkpoint,
    name: str,
    *,
    activations: str | None = None,
    format: str | None = None,
    expert: int | None = None,
    cache: bool = False,
    input_absmax: Tensor | float | None = None,
) -> tuple[PackedWeight, Tensor | None]:
    """A quantised layer of a checkpoint, packed, and its bias. A range of the input that is given takes the place of the checkpoint's.

    format, expert: as of `read_layer`. cache: what was packed before is read from beside the checkpoint, or written there. Its name is a
    digest of the layer's files, of what it is packed for, and of the orders that kernels read. Raises CheckpointError as `read_layer`.
    """
    spelling = spelling_in(checkpoint, name, format)
    activations, recipe = recipe_of(spelling.format, activations)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    given = None if input_absmax is None else float(input_absmax)
    path = folder / CACHE / f"{_digest(checkpoint, name, spelling.format, activations, expert, given)}.safetensors"
    if cache and path.exists():
        return read_packed(path), read_bias(checkpoint, name, spelling, expert)
    layer = read_layer(checkpoint, name, format, expert=expert)
    if recipe.calibrated and input_absmax is None:
        input_absmax = layer.input_absmax
    packed = pack(layer.weight, activations=activations, input_absmax=input_absmax)
    if cache:
        path.parent.mkdir(exist_ok=True)
        write_packed(packed, path)
    return packed, layer.bias


def keep_packed(checkpoint: Checkpoint, activations: str | None = None) -> list[str]:
    """Pack the quantised matrices of a checkpoint beside it, one at a time, for layers that are loaded with cache=True; their names.

    Raises CheckpointError, by the layer's name, where activations do not go with its weight.
    """
    names = quantised_layers(checkpoint)
    for name in names:
        try:
            load_layer(checkpoint, name, activations=activations, cache=True)
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None
    return names


def _digest(checkpoint: Checkpoint, name: str, *what: object) -> str:
    stored = stored_parts(checkpoint, name)
    files = [
        (part, s.path.name, s.start, s.nbytes, s.path.stat().st_size, s.path.stat().st_mtime_ns)
        for part, s in stored.items()
    ]
    return hashlib.sha256(json.dumps([PACKING, name, files, *what]).encode()).hexdigest()[:16]


def write_packed(packed: PackedWeight, path: Path) -> None:
    """A safetensors file, whole or not at all, that says what it is packed for."""
    told = {
        "format": packed.format,
        "activations": packed.activations,
        "n": packed.n,
        "k": packed.k,
        "packing": PACKING,
    }
    write_tensors(path, packed.tensors, told)


def read_packed(path: Path) -> PackedWeight:
    """Raises CheckpointError for a damaged file, and for weights that were packed for other kernels."""
    told = told_by(path)
    tensors = {name: stored.read() for name, stored in read_header(path).items()}
    sizes = {key: told[key] for key in ("format", "activations", "n", "k")}
    return PackedWeight(tensors=tensors, **sizes)


def write_tensors(path: Path, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
    """Contiguous tensors of any device, with what is told of them."""
    shapes = {name: (WORD_OF[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    header, _ = header_of(shapes, {"format": "pt", "gemmill": json.dumps(told)})
    on_cpu = [tensor.detach().cpu() for tensor in tensors.values()]
    write_whole(path, b"".join([header, *(bytes_of(tensor) for tensor in on_cpu)]))


def told_by(path: Path) -> dict[str, Any]:
    """What a file of packed weights tells of them. Raises CheckpointError where it was packed for other kernels."""
    text = read_metadata(path).get("gemmill")
    if text is None:
        raise CheckpointError(f"{path} has no weights packed by gemmill: load it as a checkpoint")
    told: dict[str, Any] = json.loads(text)
    if told["packing"] != PACKING:
        raise CheckpointError(
            f"{path} was packed for another kernel set ({told['packing']}, and this one reads {PACKING}): pack it anew from the "
            f"checkpoint"
        )
    return told
