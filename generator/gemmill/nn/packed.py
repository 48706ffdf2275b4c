"""Weights packed for the ops of a layer, and kept: in a file, or next to their checkpoint."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EACCES, EROFS
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from gemmill.checkpoints.file import (
    WORD_OF,
    CheckpointError,
    bytes_of,
    header_of,
    parsed_json,
    read_header,
    read_metadata,
)
from gemmill.checkpoints.folder import Checkpoint
from gemmill.checkpoints.layers import quantised_layers, read_bias, read_layer, spelling_in, stored_parts
from gemmill.checkpoints.names import spelling_of
from gemmill.checkpoints.steps import Asked, steps_of
from gemmill.checkpoints.work import stays
from gemmill.checkpoints.writing import told_of_space
from gemmill.nn.recipes import PACKING, RECIPES, Recipe, of_input, recipe_of
from gemmill.quantize.weights import QuantizedWeight
from gemmill.writing import write_whole

CACHE = ".gemmill-packed"
"""The folder next to a checkpoint's files."""
_WRITTEN = 1 << 24
"""Bytes of a tensor that go to the host and into the file at a time."""


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A layer's weight in the order in which kernels read it."""

    format: str
    activations: str
    n: int
    k: int
    tensors: dict[str, Tensor]
    """Tensors by the layer's names for them."""


def pack(
    weight: QuantizedWeight, *, activations: str | None = None, input_absmax: Tensor | float | None = None
) -> PackedWeight:
    """Pack a weight for a layer. Arguments and errors are those of QuantLinear."""
    activations, recipe = _recipe(weight.format, activations, input_absmax)
    tensors = recipe.pack(weight)
    if input_absmax is not None:
        tensors |= of_input(input_absmax, tensors["alpha"])
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return PackedWeight(format=weight.format, activations=activations, n=weight.n, k=weight.k, tensors=tensors)


def _recipe(format: str, activations: str | None, input_absmax: Tensor | float | None) -> tuple[str, Recipe]:
    """The activations and the recipe of a layer. Raises ValueError where the input's range is missing, or not taken."""
    activations, recipe = recipe_of(format, activations)
    if recipe.calibrated != (input_absmax is not None):
        needs = "need the input's absmax, from a Calibration" if recipe.calibrated else "take no absmax of the input"
        raise ValueError(f"{activations} activations of {format} weights {needs}: input_absmax is {input_absmax}")
    return activations, recipe


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
    """Load a quantised layer of a checkpoint: return it packed, and its bias.

    format, expert: as of `read_layer`. input_absmax: a range of the input that takes the place of the checkpoint's.
    cache: read the packed weight from next to the checkpoint, or write it there. A digest of the layer's files, of its
    activations, and of the orders that kernels read names the file. Raises CheckpointError as `read_layer`.
    """
    spelling = spelling_in(checkpoint, name, format)
    activations, recipe = recipe_of(spelling.format, activations)
    given = None if input_absmax is None else float(input_absmax)
    path = _kept_at(checkpoint, name, spelling.format, activations, expert, given)
    if cache and path.exists():
        return read_packed(path), read_bias(checkpoint, name, spelling, expert)
    layer = read_layer(checkpoint, name, format, expert=expert)
    if recipe.calibrated and input_absmax is None:
        input_absmax = layer.input_absmax
    packed = pack(layer.weight, activations=activations, input_absmax=input_absmax)
    if cache:
        write_packed(packed, path)
    return packed, layer.bias


def keep_packed(checkpoint: Checkpoint, activations: str | None = None) -> list[str]:
    """Pack the quantised matrices of a checkpoint next to it, one at a time, for layers loaded with cache=True.

    Return their names. Existing files stay. Raises CheckpointError, by the layer's name, where activations do not go
    with its weight, and where no space is left.
    """
    names = quantised_layers(checkpoint)
    for name in names:
        try:
            format = spelling_in(checkpoint, name).format
            kind, _ = recipe_of(format, activations)
            if not _kept_at(checkpoint, name, format, kind, None, None).exists():
                load_layer(checkpoint, name, activations=kind, cache=True)
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None
    return names


def refuse_unpackable(checkpoint: Checkpoint, asked: Asked, activations: str) -> None:
    """Raises CheckpointError where `keep_packed` would refuse the result of a conversion, whatever its weights are."""
    name = f"--pack {activations}"
    try:
        recipe_of(asked.to, activations)
        for step in steps_of(checkpoint, asked):
            name, spelling = step.name, step.kept or spelling_of(asked.to, asked.names)
            if spelling.experts or (stays(step) and step.kept is None):
                continue
            _, recipe = recipe_of(spelling.format, activations)
            has_range = f"{name}{spelling.input}" in step.writes
            _recipe(spelling.format, activations, 1.0 if recipe.calibrated and has_range else None)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from None


def _kept_at(checkpoint: Checkpoint, name: str, *what: object) -> Path:
    """The file of a layer packed for `what`."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    return folder / CACHE / f"{_digest(checkpoint, name, *what)}.safetensors"


def _digest(checkpoint: Checkpoint, name: str, *what: object) -> str:
    stored = stored_parts(checkpoint, name)
    files = [
        (part, s.path.name, s.start, s.nbytes, s.path.stat().st_size, s.path.stat().st_mtime_ns)
        for part, s in stored.items()
    ]
    return hashlib.sha256(json.dumps([PACKING, name, files, *what]).encode()).hexdigest()[:16]


def write_packed(packed: PackedWeight, path: Path) -> None:
    """Write a safetensors file that names the recipe of its tensors, whole or not at all."""
    told = {
        "format": packed.format,
        "activations": packed.activations,
        "n": packed.n,
        "k": packed.k,
        "packing": PACKING,
    }
    write_tensors(path, packed.tensors, told)


def read_packed(path: Path) -> PackedWeight:
    """Read packed weights. Raises CheckpointError for a damaged file, and for weights packed for other kernels."""
    told = told_by(path)
    tensors = {name: stored.read() for name, stored in read_header(path).items()}
    sizes = {key: told.get(key) for key in ("format", "activations", "n", "k")}
    if (sizes["format"], sizes["activations"]) not in list(RECIPES) or not {"weight", "weight_scale"} <= tensors.keys():
        raise CheckpointError(
            f"{path} has no layer's weight, or does not tell of which kind: pack it anew from the checkpoint"
        )
    return PackedWeight(tensors=tensors, **sizes)


def write_tensors(path: Path, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
    """Write tensors of any device, with `told` as metadata. The file appears whole or not at all.

    A part of one tensor is on its way at a time. Raises CheckpointError where no space is left, and where the folder
    cannot be written.
    """
    shapes = {name: (WORD_OF[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    header, places = header_of(shapes, {"format": "pt", "gemmill": json.dumps(told)})
    size = max((stop for _, stop in places.values()), default=len(header))
    remedy = f"it takes {size} bytes, and nothing of it was written; free some and do the same again"
    with told_of_space(path, remedy):
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, chain([header], *map(_parts, tensors.values())))
        except OSError as error:
            if error.errno not in (EACCES, EROFS):
                raise
            raise CheckpointError(f"{path} cannot be written: {error.strerror}; nothing of it was") from None


def _parts(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, some rows at a time."""
    rows = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    count = max(_WRITTEN * len(rows) // max(tensor.nbytes, 1), 1)
    return (bytes_of(part.contiguous().cpu()) for part in rows.split(count))


def told_by(path: Path) -> dict[str, Any]:
    """The metadata of a file of packed weights. Raises CheckpointError where it was packed for other kernels."""
    text = read_metadata(path).get("gemmill")
    if text is None:
        raise CheckpointError(f"{path} has no weights packed by gemmill: load it as a checkpoint")
    told = parsed_json(text)
    told = told if isinstance(told, dict) else {}
    if told.get("packing") != PACKING:
        raise CheckpointError(
            f"{path} was packed for another kernel set ({told.get('packing')}, and this one reads {PACKING}): pack it anew from the "
            f"checkpoint"
        )
    return told
