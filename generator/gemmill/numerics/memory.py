"""The memory of one call: every tensor in one block of bytes, guards around each, poison wherever there is no operand.

The check covers the whole block: a byte may change only where an output has an element.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 256
"""The alignment in bytes of each tensor's first byte, before its shift."""
GUARD_BYTES = 512
"""The guard's bytes between two tensors, and after a tensor's last byte."""
GUARD_ROWS = 2
"""Guard rows next to a matrix."""
POISON = 0xFF
"""The byte of poison: NaN in all float types."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One tensor argument: as the op sees it, and as the matrix that its elements are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    values: str | tuple[int, ...] | None
    """The kind of values, of values.py, or the values themselves. None for pure outputs, which begin as poison."""
    written: bool = False
    shift: int = 0
    """The elements by which the tensor lies behind an aligned address."""
    column_major: bool = False
    """Whether the reference gets the tensor with columns together, at multiples of four elements."""
    reference_shape: tuple[int, ...] | None = None
    """The tensor's shape for the reference; None for [rows, columns]."""
    padding_rows: int = 0
    """The rows behind the last, of all columns but the last, that the op may write."""

    @classmethod
    def matrix(cls, dtype: torch.dtype, shape: tuple[int, int], strides: tuple[int, int], **more: Any) -> "Slot":
        """A tensor of two dimensions, which is its own matrix."""
        (rows, columns), (by_row, by_column) = shape, strides
        sides = {"rows": rows, "columns": columns, "row_stride": by_row, "column_stride": by_column}
        return cls(dtype=dtype, shape=shape, strides=strides, **sides, **more)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def span(self) -> int:
        """The elements from the first to the last, including the gaps between rows."""
        if not self.numel:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_overlapping(self) -> bool:
        """Whether two elements may share memory."""
        sizes = sorted(
            (s, n)
            for n, s in ((self.rows, self.row_stride), (self.columns, self.column_stride))
            if n > 1 and self.numel
        )
        return bool(sizes) and (sizes[0][0] == 0 or (len(sizes) == 2 and sizes[1][0] < sizes[0][0] * sizes[0][1]))

    @property
    def poison(self) -> int:
        """The byte that fills the gaps of a tensor, and all of a pure output. It is NaN, and an unlikely code of s8."""
        if self.dtype.itemsize > 1:
            return POISON
        return 0x55 if self.written and self.dtype is torch.int8 else 0x7F

    def __str__(self) -> str:
        shift = f" + {self.shift}" if self.shift else ""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} strides {list(self.strides)}{shift}"


def bits_of(tensor: Tensor) -> Tensor:
    """A tensor as integers of its elements' width."""
    return tensor.view(_BITS[tensor.dtype.itemsize])


class Memory:
    """Memory of slots in one block."""

    def __init__(self, slots: Mapping[str, Slot], device: torch.device, guard_bytes: int = GUARD_BYTES) -> None:
        self.slots = dict(slots)
        self._offsets: dict[str, int] = {}
        end = 0
        for name, slot in slots.items():
            size = slot.dtype.itemsize
            start = -(-(end + guard_bytes) // ALIGNMENT) * ALIGNMENT + slot.shift * size
            self._offsets[name] = start
            end = start + slot.span * size
        total = -(-(end + guard_bytes) // ALIGNMENT) * ALIGNMENT
        self.bytes = torch.full((total,), POISON, dtype=torch.uint8, device=device)
        for name, slot in slots.items():
            if slot.dtype.itemsize == 1 and slot.numel:
                self.flat(name).fill_(slot.poison)

    def flat(self, name: str) -> Tensor:
        """All bytes of a slot from its first element to its last."""
        slot, start = self.slots[name], self._offsets[name]
        return self.bytes[start : start + slot.span * slot.dtype.itemsize]

    def tensor(self, name: str) -> Tensor:
        """The argument."""
        slot = self.slots[name]
        return self._view(name, slot.dtype, slot.shape, slot.strides)

    def over(self, name: str, other: str) -> Tensor | None:
        """The argument laid over another one's first bytes. None where it would not end within the block."""
        slot, size = self.slots[name], self.slots[name].dtype.itemsize
        start = self._offsets[other] // size
        if (start + slot.span) * size > self.bytes.numel():
            return None
        return self.bytes.view(slot.dtype).as_strided(slot.shape, slot.strides, start)

    def bits(self, name: str, source: Tensor | None = None) -> Tensor:
        """A slot as a matrix of integers, in this memory or in a copy of its bytes."""
        slot = self.slots[name]
        kind = _BITS[slot.dtype.itemsize]
        return self._view(name, kind, (slot.rows, slot.columns), (slot.row_stride, slot.column_stride), source)

    def dense(self, name: str, source: Tensor | None = None) -> Tensor:
        """A slot's elements in memory of their own, for the reference."""
        slot, bits = self.slots[name], self.bits(name, source)
        if slot.column_major:  # columns at multiples of four elements: packed scales want no less
            columns = bits.new_zeros((slot.columns, -(-slot.rows // 4) * 4))
            columns[:, : slot.rows] = bits.t()
            return columns.view(slot.dtype).t()[: slot.rows]
        values = (
            torch.empty((slot.rows, slot.columns), dtype=bits.dtype, device=bits.device).copy_(bits).view(slot.dtype)
        )
        return values if slot.reference_shape is None else values.view(slot.reference_shape)

    def changed(self, before: Tensor, *, written: bool) -> Tensor:
        """The bytes that differ from before where nothing may be written: if not `written`, anywhere."""
        changed = self.bytes != before
        for name, slot in self.slots.items():
            if written and slot.written and slot.numel:
                self._element_bytes(changed, name, slot.rows, slot.columns).fill_(False)
                if slot.padding_rows and slot.columns > 1:
                    self._element_bytes(changed, name, slot.rows + slot.padding_rows, slot.columns - 1).fill_(False)
        return changed

    def places(self, changed: Tensor) -> str:
        """The places where bytes changed, in words."""
        places = changed.nonzero().flatten().tolist()
        before = [name for name, start in self._offsets.items() if start <= places[0]]
        nearest = max(before, key=self._offsets.__getitem__, default=None)
        where = (
            f"{places[0] - self._offsets[nearest]} bytes after the first of {nearest}" if nearest else "before them all"
        )
        return f"{len(places)} bytes of or around the arguments changed that are no output's, the first {where}"

    def _element_bytes(self, of: Tensor, name: str, rows: int, columns: int) -> Tensor:
        slot, size = self.slots[name], self.slots[name].dtype.itemsize
        strides = (slot.row_stride * size if rows > 1 else size, slot.column_stride * size if columns > 1 else size, 1)
        return of.as_strided((rows, columns, size), strides, self._offsets[name])

    def _view(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        source: Tensor | None = None,
    ) -> Tensor:
        if not math.prod(shape):
            strides = strides if self.slots[name].numel else tuple(max(s, 0) for s in strides)
        bytes_ = self.bytes if source is None else source
        return bytes_.view(dtype).as_strided(shape, strides, self._offsets[name] // dtype.itemsize)
