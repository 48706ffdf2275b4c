"""Packed copies of 4-bit weights that callers pass at each call in a checkpoint's layout: made at the first call, then
kept.

A copy lives for as long as the memory of its weights. Weights that changed in place get a new copy: torch's version
counters tell. Nothing tells of writes through `.data`: call `forget_packed_weights` after them.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gemmill.quantize.experts import PackedExperts


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A copy, and its source weights."""

    memory: tuple[StorageWeakRef, ...]
    versions: tuple[int, ...]
    """Torch's counters of writes, one for each tensor."""
    packed: PackedExperts

    def is_gone(self) -> bool:
        """Whether memory of the weights was freed, wholly or in part."""
        return any(memory.expired() for memory in self.memory)


_kept: dict[Hashable, _Kept] = {}


def forget_packed_weights() -> None:
    """Free every packed copy: the next call packs its weights again."""
    _kept.clear()


def packed_once(
    name: str, tensors: tuple[Tensor, ...], how: Hashable, pack: Callable[[], PackedExperts]
) -> PackedExperts:
    """The result of `pack` on the tensors, from now or from an earlier call; `how` identifies the other inputs.

    Tensors of torch.inference_mode have no version counter, so every call packs them. Raises RuntimeError, in a
    sentence that begins with `name`, during the capture of a CUDA graph, and for weights that cannot be packed.
    """
    place = (how, *((x.data_ptr(), x.dtype, x.shape, x.stride(), x.device) for x in tensors))
    memory = tuple(StorageWeakRef(x.untyped_storage()) for x in tensors)
    keeps = not any(x.is_inference() for x in tensors)
    versions = tuple(x._version for x in tensors) if keeps else ()
    known = _kept.get(place)
    if keeps and known is not None and (known.memory, known.versions) == (memory, versions):
        return known.packed
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        when = "their first" if keeps else "every"
        remedy = "make a call of them before the capture" if keeps else "clone them outside of torch.inference_mode"
        raise RuntimeError(f"{name}: weights are packed at {when} call, which no captured CUDA graph can do: {remedy}")
    try:
        packed = pack()
    except ValueError as error:
        raise RuntimeError(f"{name}: {error}") from error
    if keeps:
        for other in [other for other, kept in _kept.items() if kept.is_gone()]:
            del _kept[other]
        _kept[place] = _Kept(memory=memory, versions=versions, packed=packed)
    return packed
