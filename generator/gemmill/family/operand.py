"""The facts of a tensor argument apart from its data: enough to check a call and to choose a variant."""

import math
import re
from dataclasses import dataclass
from typing import Any

DTYPE_CODES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 11,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
}
"""c10::ScalarType by torch's name, whose numbers torch promises not to change."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One tensor argument. `dtype` is the name that torch gives it, without `torch.`."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    data: int
    """Address of the first element; 0 where there is none (fake tensors)."""
    is_differentiated: bool
    """Whether autograd would have to record the call for it: it requires grad in grad mode."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def meaningful_strides(self) -> tuple[int, ...]:
        """The strides that an access can take: of dimensions of more than one element, in a tensor that has any."""
        return tuple(s for n, s in zip(self.shape, self.strides, strict=True) if self.numel and n > 1)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        bits = re.match(r"[a-z]+(\d*)", self.dtype)
        return max(int(bits[1] or 8) // 8, 1) if bits else 1

    def pieces(self, least: int) -> int:
        """Bytes that the first element must lie at a multiple of, where kernels read at least so many at once."""
        return max(least, self.element_bytes)

    def is_aligned(self, least: int) -> bool:
        """Whether it does, or has no element."""
        return self.data % self.pieces(least) == 0 or not self.numel

    @property
    def is_vector(self) -> bool:
        """Whether the elements lie behind one another along one dimension, whatever the strides of dimensions of one element."""
        longer = [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]
        return longer in ([], [1]) or not self.numel

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in order and without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if self.numel and size > 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def rows(self) -> int:
        """All dimensions but the last taken as one."""
        return math.prod(self.shape[:-1])

    @property
    def stride_of_rows(self) -> int | None:
        """Their stride, whatever that of the last; None where they have no common one. Where a stride means nothing, for it
        is never taken (a single row, no element), it is that of dense rows."""
        stride, expected = self.shape[-1], None
        if not self.numel:
            return stride
        for size, step in zip(self.shape[-2::-1], self.strides[-2::-1], strict=True):
            if size == 1:
                continue
            if expected is None:
                stride = step
            elif step != expected:
                return None
            expected = step * size
        return stride

    @property
    def row_stride(self) -> int:
        """The same for rows of contiguous elements; -1 where they are not contiguous, or there is none."""
        apart = self.numel and self.shape[-1] > 1 and self.strides[-1] != 1
        stride = None if apart else self.stride_of_rows
        return -1 if stride is None else stride

    @property
    def span(self) -> int:
        """Elements from the first to the last that the strides reach, both counted."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0

    @property
    def end(self) -> int:
        """Address one past the last element that the strides reach."""
        return self.data + self.span * self.element_bytes


Value = Operand | int | float | bool | str | tuple[int, ...] | tuple[Operand, ...] | None
Call = dict[str, Any]
"""Arguments of one call by name, each a Value: an Operand for a tensor, None for an omitted optional one."""

TMA_BYTES = 16
"""Multiples at which TMA wants data and rows to begin."""
TMA_FARTHEST = 2**40
"""Bytes from one row to the next; no descriptor has more."""
INT32_MAX = 2**31 - 1
MOST_OF_TMA = 2**31 - 2**16
"""Coordinates of a tile's end are numbers of 32 bits, those of the last band of clusters too: 256 x 4 x 8 rows and less."""


def tma_alignment(operand: Operand, row_stride: int, columns: int) -> int:
    """The largest power of two, up to TMA_BYTES, of which data and rows begin at multiples: mirrors kernels/extension/layout.h."""
    if row_stride < columns or row_stride >= TMA_FARTHEST // operand.element_bytes:
        row_stride = 1  # TMA takes no rows that overlap (expanded tensors), nor rows too far apart
    bits = operand.data | (row_stride * operand.element_bytes) | TMA_BYTES
    return bits & -bits
