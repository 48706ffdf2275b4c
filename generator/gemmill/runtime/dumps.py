"""Calls saved with their data, a file each, from which `gemmill export --from` makes a kernel that compiles on its own.

A file is safetensors. Each tensor is the bytes from its first element to its last, with the gaps between: `given.NAME`
before the call, `wrote.NAME` an output after it. The header says dtypes, shapes, strides and the other arguments.
"""

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.runtime.notices import LOG
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.select import Choice
from gemmill.version import __version__
from gemmill.writing import write_whole

SCHEMA_VERSION = 1
METADATA = "gemmill"
"""The name in a file's metadata under which a call is described, as JSON."""
GIVEN, WROTE = "given.", "wrote."
ALIGNMENT = 256
"""A record of an address has the bytes past a multiple of this."""


class Dumps:
    """A wrapper of calls that saves one for each op, dtypes and sizes, the first of a tensor's rounded up to a power of two."""

    def __init__(
        self,
        folder: Path,
        explain: Callable[[str, Sequence[Any]], tuple[str, Choice]],
        calls: int,
        most_bytes: int,
        capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing,
    ) -> None:
        """`explain` returns build and choice for an op's arguments; `calls` and `most_bytes` limit the saved files."""
        self._folder = folder
        self._explain = explain
        self._calls, self._bytes = calls, most_bytes
        self._capturing = capturing
        self._seen: set[tuple[Any, ...]] = set()
        self._told: set[str] = set()
        self._saved = 0
        self._lock = threading.Lock()

    def around(self, op: OpSchema, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the op that saves itself if it is the first of its kind. The file of a failed call has no outputs."""

        def run(*args: Any) -> Any:
            told = self._wanted(op, args)
            if told is None:
                return call(*args)
            tensors = dict(_saved(GIVEN, op.arguments, args))
            try:
                returned = call(*args)
                made = returned if isinstance(returned, (tuple, list)) else (returned,)
                written = [(p.name, arg) for p, arg in zip(op.parameters, args, strict=False) if p.written]
                written += zip(op.returns, made, strict=True) if op.returns else ()
                tensors |= _saved(WROTE, *zip(*written, strict=True))
            finally:
                self._write(op, told, tensors)
            return returned

        return run

    def _wanted(self, op: OpSchema, args: Sequence[Any]) -> dict[str, Any] | None:
        """The header of a call's file, without its tensors; None for a call that is not to be saved."""
        if self._saved >= self._calls:
            return None
        kind = (op.name, *map(_kind, args))
        if kind in self._seen:
            return None
        if self._capturing():
            self._tell("graphs", "calls that a CUDA graph captures are not saved: make one without the graph")
            return None
        try:
            build, choice = self._explain(op.name, args)
        except RuntimeError:  # which the op is about to raise itself
            return None
        if choice.entry is None:
            return None
        needed = sum(_span(tensor) * tensor.itemsize for tensor in _tensors(args))
        needed += sum(
            _span(arg) * arg.itemsize for p, arg in zip(op.parameters, args, strict=False) if _is_written(p, arg)
        )
        with self._lock:
            if kind in self._seen or self._saved >= self._calls:
                return None
            self._seen.add(kind)
            if needed > self._bytes:
                self._tell(
                    op.name,
                    f"a call of {op.name} has {needed} bytes and {self._bytes} are left: GEMMILL_DUMP_BYTES allows more",
                )
                return None
            self._saved += 1
            self._bytes -= needed
            number = self._saved
        plain = {name: arg for name, arg in zip(op.arguments, args, strict=False) if not _is_data(arg)}
        told = {"op": op.name, "variant": choice.entry.name, "build": build, "device": _device(args), "plain": plain}
        return {"schema_version": SCHEMA_VERSION, "gemmill_version": __version__, "number": number, **told}

    def _write(
        self, op: OpSchema, told: Mapping[str, Any], tensors: Mapping[str, tuple[dict[str, Any], Tensor]]
    ) -> None:
        path = self._folder / f"{op.name}-{os.getpid()}-{told['number']:03}.safetensors"
        layout = {name: facts for name, (facts, _) in tensors.items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, _file({**told, "tensors": layout}, {name: data for name, (_, data) in tensors.items()}))
        except OSError as error:
            self._saved = self._calls
            LOG.warning("calls cannot be saved in %s (GEMMILL_DUMP): %s", self._folder, error.strerror)
        else:
            LOG.info("a call of %s is saved: `gemmill export --from %s` makes a program of it", op.name, path)

    def _tell(self, about: str, text: str) -> None:
        """Say a thing once."""
        if about not in self._told:
            self._told.add(about)
            LOG.warning("GEMMILL_DUMP: %s", text)


def _is_data(arg: Any) -> bool:
    return isinstance(arg, Tensor) or (isinstance(arg, list) and any(isinstance(one, Tensor) for one in arg))


def _is_written(parameter: Any, arg: Any) -> bool:
    return parameter.written and isinstance(arg, Tensor)


def _tensors(args: Sequence[Any]) -> Iterator[Tensor]:
    for arg in args:
        yield from (one for one in (arg if isinstance(arg, list) else [arg]) if isinstance(one, Tensor))


def _kind(arg: Any) -> Any:
    if isinstance(arg, Tensor):
        first = 1 << max(arg.shape[0] - 1, 0).bit_length() if arg.dim() else 0
        return arg.dtype, first, arg.shape[1:]
    return tuple(map(_kind, arg)) if isinstance(arg, list) else arg


def _saved(
    prefix: str, names: Sequence[str], args: Sequence[Any]
) -> Iterator[tuple[str, tuple[dict[str, Any], Tensor]]]:
    """The layout of each tensor and its bytes on the host."""
    for name, arg in zip(names, args, strict=False):
        for i, one in enumerate(arg if isinstance(arg, list) else [arg]):
            if isinstance(one, Tensor):
                facts = {
                    "dtype": str(one.dtype).removeprefix("torch."),
                    "shape": list(one.shape),
                    "strides": list(one.stride()),
                    "shift": one.data_ptr() % ALIGNMENT,
                }
                yield f"{prefix}{name}{f'.{i}' if isinstance(arg, list) else ''}", (facts, _bytes(one))


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last, with the gaps between."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _bytes(tensor: Tensor) -> Tensor:
    """A copy on the host, which waits for the device."""
    flat = tensor.detach().as_strided((_span(tensor),), (1,)).view(torch.uint8)
    return flat.cpu() if tensor.is_cuda else flat.clone()


def _device(args: Sequence[Any]) -> str:
    device = next(tensor.device for tensor in _tensors(args))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _file(told: Mapping[str, Any], data: Mapping[str, Tensor]) -> Iterator[bytes]:
    header: dict[str, Any] = {"__metadata__": {METADATA: json.dumps(told)}}
    end = 0
    for name, tensor in data.items():
        header[name] = {"dtype": "U8", "shape": [tensor.numel()], "data_offsets": [end, end + tensor.numel()]}
        end += tensor.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in data.values():
        yield ctypes.string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
