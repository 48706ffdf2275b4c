"""Safetensors files: the header checked, and one tensor read at a time.

The format is a length (8 bytes, little-endian), a JSON object of that many bytes, and the tensors' bytes. The `safetensors`
package writes whole dictionaries only, which bounded memory rules out, and a layer reads with torch alone. So both ends are
here; tests hold them against the package.
"""

import ctypes
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
}
"""The dtypes of the format that torch has, by the format's words."""
WORD_OF = {dtype: word for word, dtype in DTYPES.items()}
BITS = {word: 8 * dtype.itemsize for word, dtype in DTYPES.items()} | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_MOST_HEADER = 100_000_000
"""The most bytes of a header, as the package has it."""
METADATA = "__metadata__"
_LARGEST = 1 << 63
"""A limit that no offset reaches, and no product of a shape's sizes."""
_MOST_DIMENSIONS = 64
"""The most dimensions that torch has."""
_SHOWN = 200
"""The most characters of a header that a sentence shows."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written as requested: one sentence."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor in a file, by the file's header."""

    name: str
    dtype: str
    """The format's word for it."""
    shape: tuple[int, ...]
    path: Path
    start: int
    """The position of the first byte in the file."""
    stop: int

    @property
    def nbytes(self) -> int:
        """The bytes of the data."""
        return self.stop - self.start

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's. Raises CheckpointError where torch has none."""
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{self.name} in {self.path} is {self.dtype}, which torch cannot hold: leave it out")
        return DTYPES[self.dtype]

    def read(self, into: Tensor | None = None) -> Tensor:
        """The tensor, contiguous and on the CPU; into a given one of the same size, such as a pinned one.

        Raises CheckpointError where the file has become shorter or is gone.
        """
        tensor = torch.empty(self.shape, dtype=self.torch_dtype, device="cpu") if into is None else into
        view, done = bytes_of(tensor), 0
        with opened(self.path) as file:
            file.seek(self.start)
            while done < self.nbytes:
                count = file.readinto(view[done:])
                if not count:
                    raise CheckpointError(f"{self.path} became shorter while it was read: {self.name} is cut off")
                done += count
        return tensor


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, which lives as long as the view. torch lends none without NumPy."""
    if not tensor.nbytes:
        return memoryview(bytearray())
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name, in the order of their bytes.

    Raises CheckpointError, in a sentence, for a file that is not there or no safetensors file, is cut short, or names a tensor twice.
    """
    size, text = _first(path)
    header = _parsed(path, text)
    header.pop(METADATA, None)
    tensors = [_stored(path, name, entry, 8 + len(text)) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    end = 8 + len(text)
    for tensor in tensors:
        if tensor.start != end:
            raise CheckpointError(
                f"{path} is malformed: {tensor.name} begins at byte {tensor.start}, and what lies before it ends at {end}"
            )
        end = tensor.stop
    if end != size:
        state = "cut short" if end > size else "malformed"
        raise CheckpointError(f"{path} is {state}: its tensors end at byte {end}, and it has {size}: copy it again")
    return {tensor.name: tensor for tensor in tensors}


def opened(path: Path) -> FileIO:
    """A file to be read, without a buffer. Raises CheckpointError where that cannot be done."""
    try:
        return FileIO(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; check the name, or bring the file back"
        ) from None


def _first(path: Path) -> tuple[int, bytes]:
    """The size of a file, and its header's text."""
    with opened(path) as file:
        size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise CheckpointError(
                f"{path} is no safetensors file, or cut short: it has {size} bytes, and its header would take {length}"
            )
        text = bytearray(length)
        done = 0
        while count := file.readinto(memoryview(text)[done:]):
            done += count
        return size, bytes(text[:done])


def parsed_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON text. None for a text that is no JSON, or that has too deep nesting or an integer that Python
    does not read.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except CheckpointError:  # of `pairs`
        raise
    except (ValueError, RecursionError):
        return None


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise CheckpointError(f"{path} names {name} twice: which one is meant cannot be told")
            found[name] = value
        return found

    header = parsed_json(text, unique)
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is no safetensors file: its header is no JSON object")
    return header


def _stored(path: Path, name: str, entry: Any, base: int) -> Stored:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sizes = (*shape, start, stop)
        sound = dtype in BITS and len(shape) <= _MOST_DIMENSIONS and all(type(x) is int and x >= 0 for x in sizes)
        sound = sound and max(math.prod(max(size, 1) for size in shape), start, stop) < _LARGEST
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(f"{path} is malformed: its header has {_short(json.dumps(entry))} for {_short(name)}")
    if math.prod(shape) * BITS[dtype] != 8 * (stop - start):
        raise CheckpointError(
            f"{path} is malformed: {_short(name)}, {dtype} of shape {list(shape)}, takes {math.prod(shape) * BITS[dtype] // 8} "
            f"bytes, and its header gives it {stop - start}"
        )
    return Stored(name=name, dtype=dtype, shape=shape, path=path, start=base + start, stop=base + stop)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in a file's header.

    Raises CheckpointError as `read_header`, and where they are no map from text to text.
    """
    told = _parsed(path, _first(path)[1]).get(METADATA, {})
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        raise CheckpointError(f"{path} is malformed: its {METADATA} is no map from text to text: copy it again")
    return told


def header_of(
    tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str] | None = None
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A file's first bytes, and first and last byte in the file of each tensor: those of name, dtype (a word) and shape, in order.

    The data begins at a multiple of 8 bytes, as the package has it.
    """
    entries, offset, places = {METADATA: {"format": "pt"} | (metadata or {})}, 0, {}
    for name, (dtype, shape) in tensors.items():
        stop = offset + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, stop]}
        places[name] = offset, stop
        offset = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    base = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: (base + a, base + b) for name, (a, b) in places.items()}
