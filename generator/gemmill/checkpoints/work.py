"""The files of a conversion: its shards, its journal, and the index and config that follow all shards."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gemmill.checkpoints.file import CheckpointError, read_metadata
from gemmill.checkpoints.folder import INDEX, Checkpoint, companions
from gemmill.checkpoints.names import spelling_of
from gemmill.checkpoints.sparse import SPARSE
from gemmill.checkpoints.stated import CONFIG, read_config, with_quantization
from gemmill.checkpoints.steps import BF16, FLOATS, Asked, Step
from gemmill.checkpoints.writing import SYNCED, FilePlaces, Journal, Shard, partial_of, refuse_without_space
from gemmill.quantize.errors import LayerError
from gemmill.version import __version__
from gemmill.writing import write_whole

REPORT = "conversion.json"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The result of a conversion."""

    out: Path
    report: Path
    """The file of JSON with the figures of every layer."""
    layers: tuple[LayerError, ...]
    """The layers with new codes, the one with the largest error of weights first."""
    renamed: int
    """The number of layers whose codes are those of the source."""
    read_bytes: int
    written_bytes: int
    is_stated: bool
    """Whether its config.json, if it has one, states the format of its layers. It cannot where some keep another
    format.
    """


def report_at(checkpoint: Checkpoint, out: Path) -> Path:
    """The file for a conversion's figures."""
    return out.with_name(f"{out.name}.{REPORT}") if checkpoint.path.is_file() else out / REPORT


def digest_of(checkpoint: Checkpoint, asked: Asked, steps: list[Step]) -> str:
    """The identity of a conversion: its input, its options and its output."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in checkpoint.files]
    plan = [(step.name, step.shard, step.writes) for step in steps]
    text = json.dumps([__version__, asdict(asked), files, plan])
    return hashlib.sha256(text.encode()).hexdigest()


def stays(step: Step) -> bool:
    """Whether a step copies its tensors as they are."""
    return step.spelling is None and not step.changes


class Work:
    """The files of a conversion."""

    def __init__(self, checkpoint: Checkpoint, out: Path, asked: Asked, steps: list[Step]) -> None:
        self.checkpoint, self.out, self.asked, self.steps = checkpoint, out, asked, steps
        self.single = checkpoint.path.is_file()
        folder = out.parent if self.single else out
        self.last_of = {step.shard: i for i, step in enumerate(steps)}
        """The last step of each shard."""
        self.paths = {shard: out if self.single else out / shard for shard in self.last_of}
        self.index = out / f"model{INDEX}" if not self.single and len(self.paths) > 1 else None
        named_index = next(iter(() if self.single else checkpoint.path.glob(f"*{INDEX}")), None)
        if named_index is not None:
            self.index = out / named_index.name
        self.config = None if self.single else read_config(checkpoint.path)
        self.report, self.digest = report_at(checkpoint, out), digest_of(checkpoint, asked, steps)
        self.layouts = {shard: self._layout(shard) for shard in self.paths}
        self.keys = list(_keys(steps))
        journal = folder / f".{out.name if self.single else 'checkpoint'}.journal"
        self._refuse_existing(journal)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if not journal.exists():
                refuse_without_space(folder, sum(stop for stop in self._sizes().values()))
            # --only and --keep are no part of it: shards in which the same layers stay continue.
            of_all = replace(asked, only=(), keep=())
            self.journal = Journal(journal, digest_of(checkpoint, of_all, []))
        except BaseException:
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
            raise
        for shard in self.paths:
            self._forget_lost(shard)
        self.open: dict[str, Shard] = {}
        self.unsynced = 0

    def _layout(self, shard: str) -> FilePlaces:
        writes = {key: of for step in self.steps if step.shard == shard for key, of in step.writes.items()}
        (source,) = (path for path in self.checkpoint.files if path.name == shard)
        return FilePlaces(writes, read_metadata(source))

    def _refuse_existing(self, journal: Path) -> None:
        if self.single and self.out.is_dir():
            raise CheckpointError(f"{self.out} is a folder, and {self.checkpoint.path} is a file: name a file")
        if not self.single and self.out.is_file():
            raise CheckpointError(f"{self.out} is a file, and {self.checkpoint.path} is a folder: name a folder")
        beside = [journal, self.report, *map(partial_of, self.paths.values())]
        beside += [self.index] if self.index else []
        beside += [self.out / CONFIG] if self.config is not None else []
        shards = {path.resolve() for path in (*self.paths.values(), *self.checkpoint.files)}
        if clash := [path for path in beside if path.resolve() in shards]:
            raise CheckpointError(
                f"{clash[0].name} is a shard of {self.checkpoint.path}, and the conversion writes a file of its own under that name: "
                f"rename the shard{'' if self.single else ', in the index too'}"
            )
        wanted = [*self.paths.values(), *([self.index] if self.index else [])]
        wanted += [self.out / CONFIG] if self.config is not None else []
        if not journal.exists() and (there := [path for path in wanted if path.exists()]):
            raise CheckpointError(f"{there[0]} exists: remove it, or name another output")

    def _forget_lost(self, shard: str) -> None:
        """Have the steps of a shard done again whose file is gone, or is no longer as it was."""
        keys = [key for key, step in zip(self.keys, self.steps, strict=True) if step.shard == shard]
        path, size = self.paths[shard], self.layouts[shard].size
        is_whole = all(key in self.journal.done for key in keys) and _has(path, size)
        if not is_whole and not _has(partial_of(path), size):
            for key in keys:
                self.journal.done.pop(key, None)

    def _sizes(self) -> dict[str, int]:
        """The bytes of data of each output file."""
        return {shard: layout.data_bytes for shard, layout in self.layouts.items()}

    def is_done(self, index: int) -> bool:
        """Whether a step was done, by this process or an earlier one."""
        return self.keys[index] in self.journal.done

    def shard(self, step: Step) -> Shard:
        """The output file of a step."""
        if step.shard not in self.open:
            went_on = any(self.is_done(i) for i, other in enumerate(self.steps) if other.shard == step.shard)
            self.open[step.shard] = Shard(self.paths[step.shard], self.layouts[step.shard], goes_on=went_on)
        return self.open[step.shard]

    def note(self, index: int, error: LayerError | None) -> None:
        """Note a finished step. Its file appears with its last step."""
        step = self.steps[index]
        self.journal.note(self.keys[index], None if error is None else asdict(error))
        self.unsynced += step.nbytes
        if index == self.last_of[step.shard] or self.unsynced > SYNCED:
            self.leave(close=False)
        if index == self.last_of[step.shard]:
            self.open.pop(step.shard).publish()

    def leave(self, *, close: bool = True) -> None:
        """Sync all notes to the disk; `close`: for a later process."""
        for shard in self.open.values():
            shard.sync()
        self.journal.commit()
        self.unsynced = 0
        if close:
            for shard in self.open.values():
                shard.close()
            self.journal.close(remove=False)

    def finish(self) -> Conversion:
        """Write the index, the other files of the folder and the report."""
        for shard, last in self.last_of.items():
            if partial_of(self.paths[shard]).exists():  # the process ended between noting its last step and renaming
                self.shard(self.steps[last]).publish()
        sizes = self._sizes()
        if self.index is not None:
            weight_map = {key: step.shard for step in self.steps for key in step.writes}
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
            write_whole(self.index, json.dumps(index, indent=2) + "\n")
        self._copy_companions()
        is_stated = self._state()
        layers = [LayerError(**error) for key in self.keys if (error := self.journal.done[key]) is not None]
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

    def _copy_companions(self) -> None:
        """Copy the source folder's other files, each whole or not at all. A file that is there already stays as it is."""
        for path in () if self.single else companions(self.checkpoint.path):
            copied = self.out / path.name
            if path.name not in (CONFIG, REPORT) and not copied.exists():
                partial = partial_of(copied)
                shutil.copyfile(path, partial)
                partial.replace(copied)

    def _state(self) -> bool:
        """Write the model's config with the formats that its layers have now; whether one project can state them."""
        target = None if self.asked.to in (BF16, SPARSE) else spelling_of(self.asked.to, self.asked.names)
        others = [step.kept for step in self.steps if step.kept is not None and step.kept != target]
        if self.config is not None:
            made = [step for step in self.steps if step.spelling is not None or step.changes]
            has_inputs = target is not None and all(f"{step.name}{target.input}" in step.writes for step in made)
            project, format = ("", None) if target is None or others else (target.project, target.format)
            config = with_quantization(self.config, project, format, _matrices(self.steps), has_inputs=has_inputs)
            write_whole(self.out / CONFIG, json.dumps(config, indent=2) + "\n")
        return self.config is None or (self.asked.to != SPARSE and not others)


def _keys(steps: list[Step]) -> Iterator[str]:
    """The identity of each step in a journal: a digest of all that becomes of its shard, and its place there."""
    plans: dict[str, list[object]] = {}
    for step in steps:
        plans.setdefault(step.shard, []).append([step.name, step.changes, stays(step), step.writes])
    digests = {
        shard: hashlib.sha256(json.dumps([shard, plan]).encode()).hexdigest()[:16] for shard, plan in plans.items()
    }
    places = dict.fromkeys(plans, 0)
    for step in steps:
        yield f"{digests[step.shard]}.{places[step.shard]}"
        places[step.shard] += 1


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _matrices(steps: list[Step]) -> list[str]:
    """The names of the modules whose float matrices stay."""
    return [
        step.name.removesuffix(".weight")
        for step in steps
        for tensor in step.reads.values()
        if stays(step)
        and step.kept is None
        and tensor.dtype in FLOATS
        and len(tensor.shape) == 2
        and step.name.endswith(".weight")
    ]
