"""A kernel on its own: source, command line, a host program, and one call of it.

So a fault or a time is shown to somebody without gemmill. Nothing here knows a family: the fields of its struct are
read from its `abi.h`, and their values from a recorded call. The package of this generator compiles a kernel of the
CuTe DSL: there, gemmill must be installed.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from gemmill.build.own_code import included
from gemmill.build.sources import expand, flags_for, hand_written, is_of_dsl, kernel_folders
from gemmill.emit import EmittedFile, emit
from gemmill.emit.render import render
from gemmill.family import Config
from gemmill.family.c_struct import read_struct
from gemmill.locations import kernels_dir
from gemmill.numerics.recording import Recorded, RecordedTensor
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.wheel.abi import WheelError

DATA = "data.bin"
_STRUCT = re.compile(r"struct (gemmill_\w+_args) \{")
_INCLUDE = re.compile(r"^ *#include \"([^\"]+)\"", re.MULTILINE)
_NAN_ABOVE = {torch.float8_e4m3fn: 0x7E, torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
"""The largest bits of a number that is no NaN, sign apart."""


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """Files, and the bytes that the program reads from next to them."""

    files: tuple[EmittedFile, ...]
    data: bytes


def reproducer(config: Config, recorded: Recorded, told: str, expected: str) -> Reproducer:
    """A variant's files for a recorded call. `told` describes the call, `expected` its measured time, if there is one.

    Raises TemplateError, and WheelError where the struct cannot be read.
    """
    family = REGISTRY.family_of(config)
    home = (family.home / "kernels" if family.home else kernels_dir()) / family.name
    emitted, is_dsl = emit(config), is_of_dsl(config)
    struct_name, fields = read_arguments(arguments_header(home / "abi.h"), recorded.arguments)
    data, tensors = _laid_out(recorded)
    data, ranges = _with_ranges(data, recorded)
    copied = _copies(family.name, home, emitted.text, is_dsl)
    texts = [emitted.text, *(file.text for file in copied)]
    has_cutlass = any(re.search(r"#include [<\"](cutlass|cute)/", text) for text in texts)
    values = {
        "name": to_name(config),
        "symbol": symbol_of(config),
        "family": family.name,
        "struct": struct_name,
        "size": len(recorded.arguments),
        "assignments": [_assigned(field, recorded) for field in fields if field.value],
        "tensors": tensors,
        "ranges": ranges,
        "data": DATA,
        "told": told,
        "expected": expected,
        "held": "what it wrote when the call was saved" if recorded.is_saved else "what the reference computes of them",
        "dsl": is_dsl,
        "source": emitted.path.name,
        "sources": [emitted.path.name, *(str(file.path) for file in copied if file.path.suffix == ".cu")],
        "cutlass": has_cutlass,
        "gencode": config.arch.gencode,
        "flags": _flags(config, has_cutlass),
    }
    rendered = ["main.cu", "build.sh", *(["adapter.py"] if is_dsl else [])]
    files = (
        *(EmittedFile(path=PurePosixPath(file), text=render(f"export/{file}.jinja", values)) for file in rendered),
        EmittedFile(path=PurePosixPath(emitted.path.name), text=emitted.text),
        *copied,
    )
    return Reproducer(files=files, data=data)


@dataclass(frozen=True, kw_only=True)
class StructField:
    """A field of a family's struct, as a call had it."""

    name: str
    value: int | float
    is_pointer: bool


def arguments_header(abi: Path) -> str:
    """The text of a family's `abi.h`, with the texts of gemmill's headers that it includes. Raises OSError."""
    text = abi.read_text(encoding="utf-8")
    others = included(text, tuple(kernel_folders(kernels_dir()).values()))
    return text + "".join(path.read_text(encoding="utf-8") for path in sorted(others))


def read_arguments(header: str, arguments: bytes) -> tuple[str, list[StructField]]:
    """The name of the struct of a family's `abi.h` that has so many bytes, and its fields.

    Raises WheelError where none can be read.
    """
    declared = _STRUCT.findall(header)
    if not declared:
        raise WheelError("abi.h declares no struct gemmill_..._args: a kernel's arguments cannot be written down")
    told = []
    for name in declared:
        try:
            fields = read_struct(header, name)
        except ValueError as error:
            raise WheelError(str(error)) from None
        format_ = "@" + "".join(field.format for field in fields)
        told.append(f"{name} has {struct.calcsize(format_ + '0P')} bytes")
        if struct.calcsize(format_ + "0P") == len(arguments):
            values = struct.unpack(format_, arguments[: struct.calcsize(format_)])
            return name, [
                StructField(name=field.name, value=value, is_pointer=field.format == "P")
                for field, value in zip(fields, values, strict=True)
            ]
    raise WheelError(f"{', '.join(told)} and the build was given {len(arguments)}: build again with `gemmill build`")


def _assigned(field: StructField, recorded: Recorded) -> dict[str, Any]:
    """The value of a field in the host program: an address in a tensor, or a number."""
    if not field.is_pointer:
        value = field.value.hex() if isinstance(field.value, float) else str(field.value)
        return {"field": field.name, "tensor": None, "value": value}
    place = recorded.place_of(int(field.value))
    if place is None:
        raise WheelError(
            f"{recorded.op} gives its kernel {field.name}, which is in no tensor of the call: it cannot be written down"
        )
    return {"field": field.name, "tensor": place[0], "value": str(place[1])}


def _laid_out(recorded: Recorded) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes of all tensors one after another, and where each begins."""
    data, told = bytearray(), []
    for tensor in recorded.tensors:
        begin = len(data)
        data += tensor.before
        places = {"begin": begin}
        for name, more in (("wanted", tensor.wanted), ("limits", tensor.limit)):
            places[name] = -1 if more is None else len(data)
            data += more or b""
        told.append(_facts(tensor) | places)
    return bytes(data), told


def _with_ranges(data: bytes, recorded: Recorded) -> tuple[bytes, list[dict[str, Any]]]:
    """The tensors' bytes with the lowest and highest values of codes behind them, u16, and where each lies."""
    all_data, told = bytearray(data), []
    for index, tensor in enumerate(recorded.tensors):
        for codes in tensor.ranges:
            filled = 4 - len(codes.strides)
            told.append(
                {
                    "tensor": index,
                    "bits": codes.bits,
                    "first": codes.first,
                    "begin": len(all_data),
                    "sizes": [1] * filled + list(codes.low.shape),
                    "strides": [0] * filled + list(codes.strides),
                }
            )
            for ends in (codes.low, codes.high):
                all_data += ends.to(torch.uint16).contiguous().view(torch.uint8).numpy().tobytes()
    return bytes(all_data), told


def _facts(tensor: RecordedTensor) -> dict[str, Any]:
    shape, strides = tensor.shape, tensor.strides
    filled = 4 - len(shape)
    if filled < 0:
        raise WheelError(f"{tensor.name} has {len(shape)} dimensions: 4 at most can be written down")
    return {
        "name": tensor.name,
        "bytes": len(tensor.before),
        "shift": tensor.shift,
        "width": tensor.dtype.itemsize,
        "nan_above": _NAN_ABOVE.get(tensor.dtype, 0),
        "signed": int(tensor.dtype.is_signed),
        "sizes": [1] * filled + list(shape),
        "strides": [0] * filled + list(strides),
    }


def _flags(config: Config, has_cutlass: bool) -> str:
    """The compiler's flags of a build, for a shell."""
    expanded = expand(flags_for(config.arch).cuda, {"gemmill": Path(), "cutlass": Path("$CUTLASS_INCLUDE")})
    needed = [flag for flag in expanded if has_cutlass or "$" not in flag]
    return " ".join(f'"{flag}"' if "$" in flag else flag for flag in needed if flag != "-Xptxas=-v")


def _copies(family: str, home: Path, text: str, is_dsl: bool) -> list[EmittedFile]:
    """gemmill's own files that compile with a kernel's text, and the files that they include."""
    own = [path for path in hand_written(kernels_dir()) if path.parent == home and path.suffix == ".cu"]
    begin = {f"{family}/{path.name}": path for path in own}
    for name in ("driver.cpp", *(["cutedsl.cpp"] if is_dsl else [])):
        begin[f"extension/{name}"] = kernels_dir() / "extension" / name
    files = [_copied(name, path) for name, path in begin.items()]
    includes = f'#include "{family}/abi.h"\n' + '#include "core/cutedsl.h"\n' * is_dsl
    return [*files, *_included(text + includes, files)]


def _included(text: str, files: Sequence[EmittedFile]) -> list[EmittedFile]:
    """gemmill's own headers that a text and files include, and those that these include."""
    roots = list(kernel_folders(kernels_dir()).values())
    found: dict[str, EmittedFile] = {}
    waiting = [text, *(file.text for file in files)]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            path = next((root / name for root in roots if (root / name).is_file()), None)
            if path is not None and name not in found:
                found[name] = _copied(name, path)
                waiting.append(found[name].text)
    return list(found.values())


def _copied(name: str, path: Path) -> EmittedFile:
    return EmittedFile(path=PurePosixPath(name), text=path.read_text(encoding="utf-8"))
