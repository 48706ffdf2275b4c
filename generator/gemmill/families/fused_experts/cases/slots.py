"""The tensors of random calls."""

import math
from dataclasses import replace

import torch

from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Slot


def rows(draw: Draw, dtype: torch.dtype, rows: int, columns: int, values: str, *, written: bool = False) -> Slot:
    """A matrix whose rows lie at multiples of 16 bytes, apart or not."""
    stride = columns + draw.one_of((0, 0, 16, 48))
    between = draw.below(1 << 40) if rows == 1 and draw.chance(0.5) else stride  # of one row it means nothing
    slot = Slot.matrix(
        dtype, (rows, columns), (between, 1), values=values, written=written, shift=draw.one_of((0, 0, 16))
    )
    return replace(slot, row_stride=stride)


def dense(dtype: torch.dtype, shape: tuple[int, ...], values: str | None) -> Slot:
    """A contiguous tensor. All dimensions but the last are its rows."""
    rows = math.prod(shape[:-1])
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=tuple(torch.empty(shape, device="meta", dtype=torch.float32).stride()),
        rows=rows,
        columns=shape[-1],
        row_stride=shape[-1],
        column_stride=1,
        values=values,
        reference_shape=shape,
    )
