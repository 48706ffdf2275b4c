"""A conversion writes a checkpoint in another format, or under other names.

It reads, converts and writes a layer at a time, and reads the next one meanwhile, so two are in memory. A journal lists
the finished layers: an interrupted conversion continues from there. Every output file appears whole or not at all, an
index after its shards.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, parsed_json
from gemmill.checkpoints.folder import Checkpoint, open_checkpoint
from gemmill.checkpoints.names import spelling_of
from gemmill.checkpoints.sparse import SPARSE
from gemmill.checkpoints.sparse import made as made_sparse
from gemmill.checkpoints.steps import BF16, Asked, Step, experts_of, steps_of
from gemmill.checkpoints.work import Conversion, Work, digest_of, report_at, stays
from gemmill.checkpoints.writing import told_of_space
from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.weights import QuantizedWeight, chunks, quantize_weight


class Observer(Protocol):
    """An observer follows a conversion."""

    def planned(self, total: int, done: int) -> None:
        """The conversion has so many bytes to read. An earlier process read `done` of them."""

    def advanced(self, step: Step) -> None:
        """A step is done."""


def convert(
    source: Path,
    out: Path,
    asked: Asked,
    *,
    device: str = "cpu",
    inputs: Checkpoint | None = None,
    observer: Observer | None = None,
) -> Conversion:
    """Convert a checkpoint: a file to a file, a folder to a folder. Of a folder, writes *.safetensors, their index and
    config.json, and copies files without weights.

    device: computes the codes. inputs: of layers, [tokens, K] by the layer's name without `.weight`, for the error of
    outputs.

    Raises CheckpointError, in a sentence, for a source that is damaged or incomplete, for a conversion that does not
    exist, for an output that exists, and where no space is left. Writes nothing where the source's headers already say
    no.
    """
    checkpoint = open_checkpoint(source)
    steps = steps_of(checkpoint, asked)
    with told_of_space(out):
        work = Work(checkpoint, out, asked, steps)
        try:
            with ThreadPoolExecutor(1) as reader:
                _run(work, reader, torch.device(device), inputs, observer)
        except BaseException:
            work.leave()
            raise
        return work.finish()


def quantize_checkpoint(
    source: Path | str,
    out: Path | str,
    format: str,
    *,
    names: str | None = None,
    source_format: str | None = None,
    only: Iterable[str] = (),
    keep: Iterable[str] = (),
    requantize: bool = False,
    scale_rounding: str = "up",
    rescale: bool = False,
    device: str = "cpu",
    inputs: Path | str | None = None,
    observer: Observer | None = None,
) -> Conversion:
    """A safetensors checkpoint, a file or a folder of shards, with its layers in a format of WEIGHT_FORMATS or under a
    name of FP8_NAMES, pruned to "nvfp4_2to4", or decoded to "bf16".

    names: the project whose key names OUT has, by default the first with the format. source_format: of quantised
    layers, where shapes do not tell. only, keep: patterns over keys of layers that alone change, or that stay.
    requantize: round layers of another format again. scale_rounding: of mx formats, "up" or "ocp". rescale: fit scales
    of pruned floats to the weights that remain. device, observer: as of `convert`. inputs: a checkpoint of layers'
    inputs, [tokens, K] by name, for the error of outputs. Errors are those of `convert`.
    """
    asked = Asked(
        to=format,
        names=names,
        source=source_format,
        only=tuple(only),
        keep=tuple(keep),
        requantize=requantize,
        scale_rounding=scale_rounding,
        rescale=rescale,
    )
    seen = None if inputs is None else open_checkpoint(inputs)
    return convert(Path(source), Path(out), asked, device=device, inputs=seen, observer=observer)


def is_converted(source: Path, out: Path, asked: Asked) -> bool:
    """Whether `out` was made of this source by the same conversion, and is whole. Raises CheckpointError as `convert` for the source."""
    checkpoint = open_checkpoint(source)
    report = report_at(checkpoint, out)
    found = parsed_json(report.read_bytes()) if report.is_file() else None
    return isinstance(found, dict) and found.get("digest") == digest_of(checkpoint, asked, steps_of(checkpoint, asked))


def _run(
    work: Work,
    reader: ThreadPoolExecutor,
    device: torch.device,
    inputs: Checkpoint | None,
    observer: Observer | None,
) -> None:
    left = [i for i in range(len(work.steps)) if not work.is_done(i)]
    total = sum(step.nbytes for step in work.steps)
    if observer is not None:
        observer.planned(total, total - sum(work.steps[i].nbytes for i in left))
    for index, tensors in _read_ahead(work.steps, left, reader, device):
        step, error = work.steps[index], None
        shard = work.shard(step)
        if stays(step):
            for stored in step.reads.values():
                shard.copy(stored.name, stored)
        else:
            try:
                written, error = _made(step, tensors, work.asked, device, inputs)
            except ValueError as refusal:
                key = next(iter(step.reads.values())).name
                raise CheckpointError(f"{step.name}: {refusal}; --keep '{key}' leaves it as it is") from None
            for name, tensor in written.items():
                shard.write(name, tensor.contiguous().cpu())
        work.note(index, error)
        if observer is not None:
            observer.advanced(step)


def _read_ahead(
    steps: list[Step], left: list[int], reader: ThreadPoolExecutor, device: torch.device
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Each step with its tensors; a thread reads those of the next meanwhile. It does not read a tensor that only
    stays.

    Tensors are good until the next step: two pieces of memory, pinned for a GPU, take turns.
    """
    memory = [torch.empty(0, dtype=torch.uint8, device="cpu") for _ in range(2)]

    def read(position: int) -> dict[str, Tensor]:
        step, turn = steps[left[position]], position % 2
        if stays(step):
            return {}
        starts = dict(
            zip(step.reads, accumulate((_aligned(s.nbytes) for s in step.reads.values()), initial=0), strict=False)
        )
        if memory[turn].numel() < (needed := sum(_aligned(stored.nbytes) for stored in step.reads.values())):
            memory[turn] = torch.empty(needed, dtype=torch.uint8, pin_memory=device.type == "cuda", device="cpu")
        return {
            part: stored.read(
                memory[turn][starts[part] : starts[part] + stored.nbytes].view(stored.torch_dtype).view(stored.shape)
            )
            for part, stored in step.reads.items()
        }

    ahead = reader.submit(read, 0) if left else None
    for position, index in enumerate(left):
        assert ahead is not None
        tensors = ahead.result()
        ahead = reader.submit(read, position + 1) if position + 1 < len(left) else None
        yield index, tensors


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _made(
    step: Step, tensors: dict[str, Tensor], asked: Asked, device: torch.device, inputs: Checkpoint | None
) -> tuple[dict[str, Tensor], LayerError | None]:
    """The tensors that a step writes, by key, and the error of its quantised layer."""
    source, tensors = step.spelling, {part: tensor.to(device) for part, tensor in tensors.items()}
    stored = None if source is None else source.read(tensors)
    if asked.to == BF16:
        assert stored is not None
        return _decoded(step, stored), None
    seen = inputs.read(step.name).to(device) if inputs is not None and step.name in inputs else None
    if asked.to == SPARSE:
        weight = tensors[".weight"] if stored is None else stored if stored.format == "nvfp4" else stored.values()
        return made_sparse(step.name, weight, seen, rescale=asked.rescale)
    target, error = spelling_of(asked.to, asked.names), None
    if step.changes:
        weight = target.as_rows(*tensors.values()) if stored is None else stored.values()
        stored = quantize_weight(weight, asked.to, scale_rounding=asked.scale_rounding)
        error = layer_error(step.name, weight, stored, seen)
    assert stored is not None
    written = {step.name + part: tensor for part, tensor in target.write(stored, experts_of(step)).items()}
    if target.input is not None and source is not None and source.input in tensors:
        written[f"{step.name}{target.input}"] = target.stored_input(source.absmax(tensors[source.input]))
    return written, error


def _decoded(step: Step, stored: QuantizedWeight) -> dict[str, Tensor]:
    """The tensor in bf16, made in parts."""
    values = torch.empty(stored.n, stored.k, dtype=torch.bfloat16, device=stored.codes.device)
    for rows in chunks(values):
        values[rows] = stored.values(rows).bfloat16()
    (key,) = step.writes
    assert step.spelling is not None
    return {key: step.spelling.from_rows(values, experts_of(step))}
