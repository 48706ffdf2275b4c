"""Calls that `GEMMILL_DUMP` saved, read back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, read_header, read_metadata
from gemmill.runtime.dumps import ALIGNMENT, GIVEN, METADATA, SCHEMA_VERSION, WROTE
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A tensor of a saved call."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    shift: int
    """The bytes by which it lay behind a multiple of ALIGNMENT."""

    def tensor(self, data: Tensor) -> Tensor:
        """The tensor of its bytes, in memory of its own on the CPU. Raises RuntimeError where they are too few."""
        room = torch.zeros(data.numel() + 2 * ALIGNMENT, dtype=torch.uint8, device="cpu")
        start = (self.shift - room.data_ptr()) % ALIGNMENT
        room[start : start + data.numel()] = data
        elements = room[start : start + data.numel()].view(self.dtype)
        return elements.as_strided(self.shape, self.strides)


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """A saved call."""

    path: Path
    op: str
    variant: str
    """The variant that it was answered by."""
    build: str
    """The id of the variant's build."""
    device: str
    """The name of the GPU."""
    plain: Mapping[str, Any]
    """The arguments other than tensors, by name."""
    layouts: Mapping[str, SavedTensor]
    """The tensors, by their names in the file."""
    data: Mapping[str, Tensor]
    """Their bytes."""

    def arguments(self, device: str) -> list[Any]:
        """Fresh operands in the order of the op's schema, as they were before the call."""
        defaults = {parameter.name: parameter.default for parameter in BY_NAME[self.op].parameters}
        return [self._argument(name, default, device) for name, default in defaults.items()]

    @property
    def wrote(self) -> dict[str, Tensor]:
        """The outputs as the call left them, by argument; empty where it failed."""
        names = [name for name in self.layouts if name.startswith(WROTE)]
        return {name.removeprefix(WROTE): self._tensor(name) for name in names}

    def errors(self) -> dict[str, str]:
        """How far each output is from the reference's, in words. Runs the reference on the CPU."""
        op, given = BY_NAME[self.op], self.arguments("cpu")
        made = by_reference(op, given)
        results = dict(zip(op.arguments, given, strict=True))
        results |= zip(op.returns, made if isinstance(made, (tuple, list)) else (made,), strict=False)
        return {name: _error(found, results[name]) for name, found in self.wrote.items()}

    def _argument(self, name: str, default: Any, device: str) -> Any:
        if name in self.plain:
            return self.plain[name]
        if f"{GIVEN}{name}" in self.layouts:
            return self._tensor(f"{GIVEN}{name}").to(device)
        several = [key for key in self.layouts if key.startswith(f"{GIVEN}{name}.")]
        return [self._tensor(key).to(device) for key in several] or default

    def _tensor(self, name: str) -> Tensor:
        return self.layouts[name].tensor(self.data[name])

    def __str__(self) -> str:
        given = [(name, layout) for name, layout in self.layouts.items() if name.startswith(GIVEN)]
        shapes = [f"{name.removeprefix(GIVEN)} {' x '.join(map(str, layout.shape))}" for name, layout in given]
        return f"{', '.join(shapes)}, as saved on {self.device}"


def read_dump(path: Path) -> Dumped:
    """The call in a file. Raises CheckpointError for a file that holds none."""
    told = read_metadata(path).get(METADATA)
    if told is None:
        raise CheckpointError(f"{path} holds no call of gemmill's: GEMMILL_DUMP=FOLDER saves calls in a folder")
    try:
        call = json.loads(told)
        version = call["schema_version"]
        layouts = {name: _layout(facts) for name, facts in call["tensors"].items()}
        fields = {name: call[name] for name in ("op", "variant", "build", "device", "plain")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is malformed: its description of the call cannot be read ({error!r})") from None
    if version != SCHEMA_VERSION or call["op"] not in BY_NAME:
        raise CheckpointError(
            f"{path} is of gemmill {call.get('gemmill_version')} (schema {version}, op {call['op']}), which this one does not read: "
            "export it with that release"
        )
    stored = read_header(path)
    if missing := layouts.keys() - stored.keys():
        raise CheckpointError(f"{path} is malformed: it tells of {min(missing)} and has no such tensor")
    return Dumped(path=path, layouts=layouts, data={name: stored[name].read() for name in layouts}, **fields)


def _layout(facts: Mapping[str, Any]) -> SavedTensor:
    dtype = getattr(torch, facts["dtype"])
    shape, strides = tuple(map(int, facts["shape"])), tuple(map(int, facts["strides"]))
    return SavedTensor(dtype=dtype, shape=shape, strides=strides, shift=int(facts["shift"]))


def _error(found: Tensor, wanted: Tensor) -> str:
    if not found.numel():
        return "is empty"
    if torch.equal(found, wanted):
        return "equals the reference"
    if found.dtype.is_floating_point:
        off = (found.to(torch.float64) - wanted.to(torch.float64)).norm() / wanted.to(torch.float64).norm()
        return f"is {off.item():.1e} off the reference, relative in the norm"
    share = (found != wanted).double().mean().item()
    return f"differs from the reference in {share:z.2%} of its elements"
