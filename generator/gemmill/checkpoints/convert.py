"""A conversion writes a checkpoint in another format, or under other names. It is read, made and written a layer at a
time.

The next layer is read while one is made, so two are in memory. What is done is noted: a conversion that was
interrupted goes on where it was. Every output file appears whole or not at all, an index after its shards.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gemmill.checkpoints.file import BITS, CheckpointError, parsed_json
from gemmill.checkpoints.folder import INDEX, Checkpoint, open_checkpoint
from gemmill.checkpoints.names import spelling_of
from gemmill.checkpoints.sparse import SPARSE
from gemmill.checkpoints.sparse import made as made_sparse
from gemmill.checkpoints.stated import CONFIG, read_config, with_quantization
from gemmill.checkpoints.steps import BF16, FLOATS, Asked, Step, experts_of, steps_of
from gemmill.checkpoints.writing import SYNCED, Journal, Shard, refuse_without_space, told_of_space
from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.weights import QuantizedWeight, chunks, quantize_weight
from gemmill.version import __version__
from gemmill.writing import write_whole

REPORT = "conversion.json"


class Observer(Protocol):
    """An observer is told how far a conversion is."""

    def planned(self, total: int, done: int) -> None:
        """The conversion has so many bytes to read. An earlier process read `done` of them."""

    def advanced(self, step: Step) -> None:
        """A step is done."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The result of a conversion."""

    out: Path
    report: Path
    """The file of JSON with the figures of every layer."""
    layers: tuple[LayerError, ...]
    """The layers whose codes were made, the one with the largest error of weights first."""
    renamed: int
    """The number of layers whose codes are those of the source."""
    read_bytes: int
    written_bytes: int
    is_stated: bool
    """Whether its config.json, if it has one, says how its layers are quantised. It cannot where some keep another
    format.
    """


def convert(
    source: Path,
    out: Path,
    asked: Asked,
    *,
    device: str = "cpu",
    inputs: Checkpoint | None = None,
    observer: Observer | None = None,
) -> Conversion:
    """Convert a checkpoint: a file to a file, a folder to a folder. Of a folder *.safetensors, their index and config.json are written.

    device: where codes are made. inputs: of layers, [tokens, K] by the layer's name without `.weight`, from which the error of
    outputs is told.

    Raises CheckpointError, in a sentence, for a source that is damaged or incomplete, and for what cannot be converted as asked.
    It does for an output that exists, and where no space is left. Nothing is written where the source's headers already say no.
    """
    checkpoint = open_checkpoint(source)
    steps = steps_of(checkpoint, asked)
    with told_of_space(out):
        work = _Work(checkpoint, out, asked, steps)
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
    """A safetensors checkpoint, a file or a folder of shards, with its layers in a format of WEIGHT_FORMATS, pruned to
    "nvfp4_2to4", or decoded to "bf16".

    names: the project whose key names are written, by default the first that has the format. source_format: of layers that are quantised
    already, where shapes do not tell. only, keep: patterns over keys of layers that alone change, or that stay. requantize: layers of
    another format are rounded again. scale_rounding: of mx formats, "up" or "ocp". rescale: fit scales of pruned floats to what is kept. device, observer: as of `convert`. inputs: a checkpoint
    of layers' inputs, [tokens, K] by name, from which the error of outputs is told. Errors are those of `convert`.
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
    report = _report_at(checkpoint, out)
    found = parsed_json(report.read_bytes()) if report.is_file() else None
    return isinstance(found, dict) and found.get("digest") == _digest(checkpoint, asked, steps_of(checkpoint, asked))


def _report_at(checkpoint: Checkpoint, out: Path) -> Path:
    return out.with_name(f"{out.name}.{REPORT}") if checkpoint.path.is_file() else out / REPORT


def _digest(checkpoint: Checkpoint, asked: Asked, steps: list[Step]) -> str:
    """The identity of a conversion: what is read, how, and what becomes of it."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in checkpoint.files]
    plan = [(step.name, step.shard, step.writes) for step in steps]
    text = json.dumps([__version__, asdict(asked), files, plan])
    return hashlib.sha256(text.encode()).hexdigest()


class _Work:
    """The files of a conversion."""

    def __init__(self, checkpoint: Checkpoint, out: Path, asked: Asked, steps: list[Step]) -> None:
        self.checkpoint, self.out, self.asked, self.steps = checkpoint, out, asked, steps
        self.single = checkpoint.path.is_file()
        folder = out.parent if self.single else out
        self.last_of = {step.shard: i for i, step in enumerate(steps)}
        """The last step of each shard."""
        self.paths = {shard: out if self.single else out / shard for shard in self.last_of}
        self.index = out / "model.safetensors.index.json" if not self.single and len(self.paths) > 1 else None
        named_index = next(iter(() if self.single else checkpoint.path.glob(f"*{INDEX}")), None)
        if named_index is not None:
            self.index = out / named_index.name
        self.config = None if self.single else read_config(checkpoint.path)
        self.report, self.digest = _report_at(checkpoint, out), _digest(checkpoint, asked, steps)
        journal = folder / f".{out.name if self.single else 'checkpoint'}.journal"
        self._refuse_existing(journal)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if not journal.exists():
                refuse_without_space(folder, sum(stop for stop in self._sizes().values()))
            self.journal = Journal(journal, self.digest)
        except BaseException:
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
            raise
        self.went_on = bool(self.journal.done)
        self.open: dict[str, Shard] = {}
        self.unsynced = 0

    def _refuse_existing(self, journal: Path) -> None:
        if self.single and self.out.is_dir():
            raise CheckpointError(f"{self.out} is a folder, and {self.checkpoint.path} is a file: name a file")
        if not self.single and self.out.is_file():
            raise CheckpointError(f"{self.out} is a file, and {self.checkpoint.path} is a folder: name a folder")
        wanted = [*self.paths.values(), *([self.index] if self.index else [])]
        wanted += [self.out / CONFIG] if self.config is not None else []
        if not journal.exists() and (there := [path for path in wanted if path.exists()]):
            raise CheckpointError(f"{there[0]} exists: remove it, or name another output")

    def _sizes(self) -> dict[str, int]:
        """The bytes of data of each output file."""
        sizes = dict.fromkeys(self.paths, 0)
        for step in self.steps:
            for dtype, shape in step.writes.values():
                sizes[step.shard] += math.prod(shape) * BITS[dtype] // 8
        return sizes

    def shard(self, step: Step) -> Shard:
        """The output file of a step."""
        if step.shard not in self.open:
            writes = {k: v for other in self.steps if other.shard == step.shard for k, v in other.writes.items()}
            first = next(i for i, other in enumerate(self.steps) if other.shard == step.shard)
            went_on = any(i in self.journal.done for i in range(first, self.last_of[step.shard] + 1))
            self.open[step.shard] = Shard(self.paths[step.shard], writes, goes_on=went_on)
        return self.open[step.shard]

    def note(self, index: int, error: LayerError | None) -> None:
        """Note that a step is written. Its file appears with its last step."""
        step = self.steps[index]
        self.journal.note(index, None if error is None else asdict(error))
        self.unsynced += step.nbytes
        if index == self.last_of[step.shard] or self.unsynced > SYNCED:
            self.leave(close=False)
        if index == self.last_of[step.shard]:
            self.open.pop(step.shard).publish()

    def leave(self, *, close: bool = True) -> None:
        """Bring all that was noted to the disk; `close`: for a later process."""
        for shard in self.open.values():
            shard.sync()
        self.journal.commit()
        self.unsynced = 0
        if close:
            for shard in self.open.values():
                shard.close()
            self.journal.close(remove=False)

    def finish(self) -> Conversion:
        """Write the index and the report."""
        for shard, last in self.last_of.items():
            if not self.paths[shard].exists():  # the process ended between noting its last step and renaming
                self.shard(self.steps[last]).publish()
        sizes = self._sizes()
        if self.index is not None:
            weight_map = {key: step.shard for step in self.steps for key in step.writes}
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
            write_whole(self.index, json.dumps(index, indent=2) + "\n")
        is_stated = self._state()
        layers = [LayerError(**error) for error in self.journal.done.values() if error is not None]
        layers.sort(key=lambda layer: -layer.weights)
        report = {"version": __version__, "asked": asdict(self.asked), "digest": self.digest}
        report["layers"] = [asdict(layer) for layer in layers]
        write_whole(self.report, json.dumps(report, indent=2) + "\n")
        self.journal.close(remove=True)
        return Conversion(
            out=self.out,
            report=self.report,
            layers=tuple(layers),
            renamed=sum(step.spelling is not None and not step.changes for step in self.steps),
            read_bytes=sum(step.nbytes for step in self.steps),
            written_bytes=sum(sizes.values()),
            is_stated=is_stated,
        )

    def _state(self) -> bool:
        """Write the model's config with what its layers are now; whether one project can say it."""
        target = None if self.asked.to in (BF16, SPARSE) else spelling_of(self.asked.to, self.asked.names)
        others = [step.kept for step in self.steps if step.kept is not None and step.kept != target]
        if self.config is not None:
            made = [step for step in self.steps if step.spelling is not None or step.changes]
            has_inputs = target is not None and all(f"{step.name}{target.input}" in step.writes for step in made)
            project, format = ("", None) if target is None or others else (target.project, target.format)
            config = with_quantization(self.config, project, format, _matrices(self.steps), has_inputs=has_inputs)
            write_whole(self.out / CONFIG, json.dumps(config, indent=2) + "\n")
        return self.config is None or (self.asked.to != SPARSE and not others)


def _run(
    work: _Work,
    reader: ThreadPoolExecutor,
    device: torch.device,
    inputs: Checkpoint | None,
    observer: Observer | None,
) -> None:
    left = [i for i in range(len(work.steps)) if i not in work.journal.done]
    total = sum(step.nbytes for step in work.steps)
    if observer is not None:
        observer.planned(total, total - sum(work.steps[i].nbytes for i in left))
    for index, tensors in _read_ahead(work.steps, left, reader, device):
        step, error = work.steps[index], None
        shard = work.shard(step)
        if _stays(step):
            for stored in step.reads.values():
                shard.copy(stored.name, stored)
        else:
            try:
                written, error = _made(step, tensors, work.asked, device, inputs)
            except ValueError as refusal:
                raise CheckpointError(f"{step.name}: {refusal}") from None
            for name, tensor in written.items():
                shard.write(name, tensor.contiguous().cpu())
        work.note(index, error)
        if observer is not None:
            observer.advanced(step)


def _matrices(steps: list[Step]) -> list[str]:
    """The names of the modules whose float matrices stay."""
    return [
        step.name.removesuffix(".weight")
        for step in steps
        for tensor in step.reads.values()
        if _stays(step)
        and step.kept is None
        and tensor.dtype in FLOATS
        and len(tensor.shape) == 2
        and step.name.endswith(".weight")
    ]


def _stays(step: Step) -> bool:
    return step.spelling is None and not step.changes


def _read_ahead(
    steps: list[Step], left: list[int], reader: ThreadPoolExecutor, device: torch.device
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Each step with its tensors; those of the next are read meanwhile. What only stays is not read.

    Tensors are good until the next step: two pieces of memory, pinned for a GPU, take turns.
    """
    memory = [torch.empty(0, dtype=torch.uint8, device="cpu") for _ in range(2)]

    def read(position: int) -> dict[str, Tensor]:
        step, turn = steps[left[position]], position % 2
        if _stays(step):
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
    """The tensors that a step writes, by key, and the error of what was quantised."""
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
