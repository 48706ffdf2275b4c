"""Blocks of a model whose weights stay on the host, and lie on the GPU in turns.

The tensors of a block are one piece of pinned memory, so it is one copy. GPU memory for some blocks is allocated once;
while a block computes, a later one is copied. The extra states of modules, which are no tensors, go with each block.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gemmill.checkpoints.file import CheckpointError, read_header
from gemmill.nn.linear import QuantLinear
from gemmill.nn.packed import told_by, write_tensors
from gemmill.nn.recipes import PACKING

_ALIGNED = 256
"""Bytes to a multiple of which each tensor begins, as torch's allocator has it."""
_EXTRA = "extra"
"""The field of a file for extra states."""


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def extra_states(module: nn.Module) -> dict[str, Any]:
    """The extra states of a module and those in it, by name: the factor of an adapter is in one. A QuantLinear's is a dict."""
    return {
        name: each.told() if isinstance(each, QuantLinear) else each.get_extra_state()
        for name, each in module.named_modules()
        if _has_extra_state(each)
    }


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _set_extra_states(module: nn.Module, states: dict[str, Any]) -> None:
    for name, state in states.items():
        module.get_submodule(name).set_extra_state(state)


def save_packed(module: nn.Module, path: Path | str) -> None:
    """A module's tensors and extra states as a file, whole or not at all, from which a FileBlock or `load_packed` reads
    them.

    Raises CheckpointError where no space is left, and for an extra state that JSON cannot hold.
    """
    states = extra_states(module)
    for name, state in states.items():
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot have the extra state of {name or 'the module'}: files have it as JSON, and {error}; keep the "
                "block in memory, as a Block"
            ) from None
    write_tensors(Path(path), tensors_of(module), {"packing": PACKING, _EXTRA: states})


def load_packed(module: nn.Module, path: Path | str) -> None:
    """Fill a module's tensors and extra states from such a file. Raises CheckpointError where they differ, or were
    packed for other kernels."""
    stored, states = _stored(Path(path), module)
    _set_extra_states(module, states)
    with torch.no_grad():
        for name, tensor in tensors_of(module).items():
            tensor.copy_(stored[name].read())


def _stored(path: Path, like: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a file and its extra states, which are those of a module by name."""
    states = told_by(path).get(_EXTRA)
    stored = read_header(path)
    own = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors_of(like).items()}
    found = {name: (s.torch_dtype, s.shape) for name, s in stored.items()}
    if differ := sorted({name for name in own.keys() | found.keys() if own.get(name) != found.get(name)}):
        raise CheckpointError(
            f"{path} is not of such a block: {differ[0]} is {_told(found.get(differ[0]))} there and {_told(own.get(differ[0]))} here"
        )
    states = states if isinstance(states, dict) else {}
    if differ := _other_states(like, states):
        raise CheckpointError(f"{path} is not of such a block: {differ}; save it anew from the module")
    return stored, states


def _other_states(like: nn.Module, states: dict[str, Any]) -> str:
    """Of which module extra states have none, or one too many, in words; "" where they are those of `like`."""
    names = {name for name, each in like.named_modules() if _has_extra_state(each)}
    for name in sorted(names ^ states.keys()):
        return f"it {'lacks' if name in names else 'has'} an extra state of {name or 'the module'}"
    return ""


def _told(kind: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{str(kind[0]).removeprefix('torch.')} {list(kind[1])}"


class Memory:
    """Views of one piece of memory for the tensors of a block."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        starts, end = {}, 0
        for name, tensor in tensors.items():
            starts[name] = end
            end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self.flat = torch.empty(end, dtype=torch.uint8, device=device, pin_memory=pinned)
        self.views = {
            name: self.flat[starts[name] : starts[name] + t.nbytes].view(t.dtype).view(t.shape)
            for name, t in tensors.items()
        }


class Block:
    """A module's tensors on the host, and its extra states."""

    def __init__(self, module: nn.Module) -> None:
        own = tensors_of(module)
        self.tensors = {name: torch.empty_like(tensor, device="meta") for name, tensor in own.items()}
        """Meta tensors with the dtypes and shapes."""
        self.extra = copy.deepcopy(extra_states(module))
        """Extra states by the name of their module."""
        self._memory = Memory(own, torch.device("cpu"))
        for name, view in self._memory.views.items():
            view.copy_(own[name].detach())

    @property
    def host(self) -> Tensor:
        """All tensors of the block, uint8, pinned where there is a GPU."""
        return self._memory.flat


class FileBlock:
    """A module's tensors in a file that `save_packed` wrote. The first use reads it."""

    def __init__(self, path: Path | str, like: nn.Module) -> None:
        """like: a module of the same structure. Raises CheckpointError as `load_packed`."""
        own = tensors_of(like)
        self._stored, self.extra = _stored(Path(path), like)
        self.tensors = {name: torch.empty_like(tensor, device="meta") for name, tensor in own.items()}
        self._memory: Memory | None = None

    @property
    def host(self) -> Tensor:
        """All tensors of the block, uint8, pinned where there is a GPU."""
        if self._memory is None:
            memory = Memory(self.tensors, torch.device("cpu"))
            for name, view in memory.views.items():
                self._stored[name].read(view)
            self._memory = memory
        return self._memory.flat


_OF_SLOTS = frozenset({"_memory", "_slots", "_copying", "_filled", "_free", "_copied", "_run"})
"""The attributes that `InTurns` makes with its slots."""


class InTurns(nn.Module):
    """Blocks that run one after another, x = block(x, *more), with GPU memory for some of them only."""

    def __init__(
        self,
        like: nn.Module,
        blocks: Sequence[Block | FileBlock],
        *,
        device: torch.device | str = "cuda",
        slots: int = 2,
    ) -> None:
        """like: a module of the blocks' structure, without use of its own tensors. slots: blocks that have GPU memory.

        Sets a block's extra states before it runs. Raises ValueError for blocks that differ from `like`, or whose extra
        states it refuses, and for fewer than two slots.
        """
        super().__init__()
        if slots < 2:
            raise ValueError(f"there are {slots} slots, expected two or more: one computes while another is filled")
        own = tensors_of(like)
        for index, block in enumerate(blocks):
            for name in own.keys() | block.tensors.keys():
                kinds = [_told(_kind(tensors.get(name))) for tensors in (own, block.tensors)]
                if kinds[0] != kinds[1]:
                    raise ValueError(
                        f"block {index} is not as the others: its {name} is {kinds[1]}, expected {kinds[0]}"
                    )
            if differ := _other_states(like, block.extra):
                raise ValueError(f"block {index} is not as the others: {differ}")
        self.device = torch.device(device)
        self._is_cuda = self.device.type == "cuda"
        self._blocks = list(blocks)
        self._make_slots(like, min(slots, max(len(blocks), 1)))
        for index, block in enumerate(blocks):
            try:
                _set_extra_states(self._slots[0], block.extra)
            except ValueError as error:
                raise ValueError(f"block {index} is not as the others: {error}") from None

    def _make_slots(self, like: nn.Module, count: int) -> None:
        own = tensors_of(like)
        self._memory = [Memory(own, self.device) for _ in range(count)]
        self._slots = [_on(like, memory.views) for memory in self._memory]
        if self._is_cuda:
            self._copying = torch.cuda.Stream(self.device)
            self._filled = [torch.cuda.Event() for _ in self._slots]
            self._free = [torch.cuda.Event() for _ in self._slots]
        self._copied = self._run = 0
        """How many blocks were ever copied, and how many ever ran. Block i % blocks lies in slot i % slots."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "InTurns":
        """A copy with slots of its own, whose modules lie in its own memory. It shares the blocks, which it only reads."""
        memo |= {id(block): block for block in self._blocks}
        made = memo[id(self)] = self.__class__.__new__(self.__class__)
        made.__dict__ = copy.deepcopy({name: x for name, x in self.__dict__.items() if name not in _OF_SLOTS}, memo)
        made._make_slots(self._slots[0], len(self._slots))
        return made

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        """Run the blocks: return the last one's result. Begins the copies of the first blocks for the next call."""
        if self._run % max(len(self._blocks), 1):
            self._begin_anew()
        for block in self._blocks:
            while self._copied < self._run + len(self._slots):
                self._copy()
            slot = self._run % len(self._slots)
            if self._is_cuda:
                torch.cuda.current_stream(self.device).wait_event(self._filled[slot])
            _set_extra_states(self._slots[slot], block.extra)
            x = self._slots[slot](x, *more)
            if self._is_cuda:
                self._free[slot].record(torch.cuda.current_stream(self.device))
            self._run += 1
        while self._copied < self._run + len(self._slots):
            self._copy()
        return x

    def _copy(self) -> None:
        """Copy the next block into the slot of the one that ran longest ago."""
        slot, host = self._copied % len(self._slots), self._blocks[self._copied % len(self._blocks)].host
        if not self._is_cuda:
            self._memory[slot].flat.copy_(host)
        else:
            with torch.cuda.stream(self._copying):
                if self._copied >= len(self._slots):
                    self._copying.wait_event(self._free[slot])
                self._memory[slot].flat.copy_(host, non_blocking=True)
                self._filled[slot].record(self._copying)
        self._copied += 1

    def _begin_anew(self) -> None:
        """Reset all slots, after a call that ended with an error."""
        if self._is_cuda:
            torch.cuda.synchronize(self.device)
        self._copied = self._run = 0


def _kind(tensor: Tensor | None) -> tuple[torch.dtype, tuple[int, ...]] | None:
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape))


def _on(like: nn.Module, views: dict[str, Tensor]) -> nn.Module:
    """A copy of a module whose tensors are views. It does not copy the module's own tensors."""
    memo = {id(tensor): _placed(tensor, views[name]) for name, tensor in _all_tensors(like)}
    return copy.deepcopy(like, memo)


def _all_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return iter(tensors_of(module).items())


def _placed(tensor: Tensor, view: Tensor) -> Tensor:
    return nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view
