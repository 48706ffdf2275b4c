"""Layouts of tensors: row strides, offsets, and strides of dimensions of size 1, which mean nothing and may be
anything.
"""

import math

import torch

from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Slot
from gemmill.vocab import DType

PADS = (0, 0, 0, 1, 3, 16, 17, 64, 128)
MEANINGLESS = (0, 1, 2, 3, 5, 16, 4096, 1 << 33)
SHIFTS = (0, 0, 0, 0, 1, 2, 3, 4, 8, 16)
TIDY = 0.6
"""The share of calls whose rows and addresses are all at multiples of 16 elements, as the fast kernels want them."""
TIDY_PADS, TIDY_SHIFTS = (0, 0, 0, 16, 64, 128), (0, 0, 0, 16)


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype as torch's."""
    found: torch.dtype = getattr(torch, dtype.torch_name)
    return found


def shift_of(draw: Draw, tidy: bool) -> int:
    """The elements from an aligned address to a tensor's first."""
    return draw.one_of(TIDY_SHIFTS if tidy else SHIFTS)


def free_stride(draw: Draw, size: int, stride: int) -> int:
    """The stride of a dimension. Now and then it is a random number, where no access steps along the dimension."""
    return draw.one_of(MEANINGLESS) if size == 1 and draw.chance(0.3) else stride


def row_stride(draw: Draw, columns: int, *, written: bool, tidy: bool) -> int:
    """The elements from row to row. Rows may be apart and, in inputs, over one another."""
    if not written and draw.chance(0.02):
        return draw.below(columns + 1)
    return columns + draw.one_of(TIDY_PADS if tidy else PADS)


def matrix(
    draw: Draw,
    dtype: torch.dtype,
    rows: int,
    columns: int,
    values: str | None,
    *,
    written: bool = False,
    transposed: bool = False,
    tidy: bool = False,
    packed: bool = False,
) -> Slot:
    """A matrix [rows, columns] of rows that may be apart unless `packed`; if `transposed`, of columns."""
    lengths = (columns, rows) if transposed else (rows, columns)
    outer = lengths[1] if packed else row_stride(draw, lengths[1], written=written, tidy=tidy)
    strides = (free_stride(draw, lengths[0], outer), free_stride(draw, lengths[1], 1))
    return Slot.matrix(
        dtype,
        (rows, columns),
        strides[::-1] if transposed else strides,
        values=values,
        written=written,
        shift=shift_of(draw, tidy),
        column_major=transposed,
    )


def vector(
    draw: Draw,
    dtype: torch.dtype,
    count: int,
    values: str | None,
    shapes: tuple[tuple[int, ...], ...],
    *,
    written: bool = False,
    reference_shape: tuple[int, ...] | None = None,
) -> Slot:
    """`count` values next to each other, in one of these shapes."""
    shape = draw.one_of(shapes)
    strides = tuple(free_stride(draw, size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape))
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=strides,
        rows=1,
        columns=count,
        row_stride=1,
        column_stride=1,
        values=values,
        written=written,
        shift=draw.one_of(SHIFTS[:8]),
        reference_shape=reference_shape,
    )


def one_value(draw: Draw, dtype: torch.dtype, values: str | None, *, written: bool = False) -> Slot:
    """A tensor of one element, of up to two dimensions."""
    return vector(draw, dtype, 1, values, ((), (1,), (1, 1)), written=written)
