"""A checkpoint: one safetensors file, or a folder of shards with or without an index."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, Stored, parsed_json, read_header
from gemmill.checkpoints.keys import named
from gemmill.checkpoints.stated import stated_format

INDEX = ".safetensors.index.json"
_NAME_MAX = 255
"""The most bytes of a file's name."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")
"""Suffixes of files that hold a model's weights, in one format or another."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of a checkpoint by name, of all its files; reads nothing but headers."""

    path: Path
    files: tuple[Path, ...]
    tensors: dict[str, Stored]
    stated: str | None = None
    """The format of its quantised layers, where its config.json states one that gemmill knows."""

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """A tensor by its name, on the CPU. Raises CheckpointError where there is none."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        return self.tensors[name].read(into)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The headers of a checkpoint's files.

    Raises CheckpointError, in a sentence, where there is none, for a damaged file, and for a shard that is not there.
    The error names keys that are missing, unknown to the index or doubled. So it does for a malformed config.json.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}")
    if path.is_file():
        return Checkpoint(path=path, files=(path,), tensors=read_header(path))
    indices = sorted(path.glob(f"*{INDEX}"))
    if len(indices) > 1:
        raise CheckpointError(f"{path} has {len(indices)} indices, {named(i.name for i in indices)}: leave one there")
    index = _read_index(indices[0]) if indices else None
    files = sorted({*index.values()} if index is not None else {file.name for file in path.glob("*.safetensors")})
    if not files:
        raise CheckpointError(f"{path} has no *.safetensors: a checkpoint is such a file, or a folder of them")
    if absent := [file for file in files if not (path / file).is_file()]:
        raise CheckpointError(f"{path} lacks shards that its index names: {named(absent)}")
    tensors = _of_all(path, files)
    if index is not None:
        _check_index(path, index, tensors)
    shards = tuple(path / file for file in files)
    return Checkpoint(path=path, files=shards, tensors=tensors, stated=stated_format(path))


def companions(folder: Path) -> list[Path]:
    """The files of a checkpoint's folder other than weights and their index: tokenizer, generation config, licence.

    It leaves out hidden files and folders.
    """
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix not in _WEIGHTS
        and not path.name.endswith(".index.json")
    )


def _of_all(path: Path, files: list[str]) -> dict[str, Stored]:
    """The tensors of a folder's files. Raises CheckpointError for keys that two have."""
    tensors: dict[str, Stored] = {}
    doubled: dict[tuple[str, str], list[str]] = {}
    for file in files:
        for name, stored in read_header(path / file).items():
            if (first := tensors.setdefault(name, stored)) is not stored:
                doubled.setdefault((first.path.name, file), []).append(name)
    if doubled:
        told = "; ".join(f"in {first} and in {second}: {named(names)}" for (first, second), names in doubled.items())
        raise CheckpointError(f"{path} has keys twice, {told}")
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    read = parsed_json(path.read_bytes())
    index = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(index, dict) or not all(_is_beside(file) for file in index.values()):
        raise CheckpointError(f"{path} is no index: it has no weight_map from keys to files beside it")
    return dict(index)


def _is_beside(file: object) -> bool:
    """Whether a text is the name of a file in a folder, as file systems have names."""
    return isinstance(file, str) and Path(file).name == file and len(file.encode(errors="replace")) <= _NAME_MAX


def _check_index(path: Path, index: dict[str, str], tensors: dict[str, Stored]) -> None:
    if missing := [name for name, file in index.items() if name not in tensors or tensors[name].path.name != file]:
        raise CheckpointError(f"{path} lacks keys in the shards that its index gives: {named(missing)}")
    if unknown := [name for name in tensors if name not in index]:
        raise CheckpointError(f"{path} has keys that its index does not know: {named(unknown)}")
