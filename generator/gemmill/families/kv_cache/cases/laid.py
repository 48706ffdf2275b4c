"""Strides of the tensors of random calls."""

import math

import torch

from gemmill.numerics.call import WITHIN, LegalCall
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import free_stride, row_stride, shift_of
from gemmill.numerics.memory import Slot

DATA = ("normal", "normal", "wide", "integers")


def strides(draw: Draw, leading: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The strides of a tensor with `leading` dimensions whose rows are `step` elements apart."""
    counts = [math.prod(max(n, 1) for n in leading[i + 1 :]) for i in range(len(leading))]
    return (*(free_stride(draw, n, step * count) for n, count in zip(leading, counts, strict=True)), 1)


def vectors(
    draw: Draw,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    tidy: bool,
    *,
    written: bool = False,
    values: str | None = None,
) -> Slot:
    """The slot of vectors [..., head dim], with rows at one stride."""
    *leading, head_dim = shape
    step = row_stride(draw, head_dim, written=written, tidy=tidy)
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=strides(draw, tuple(leading), step),
        rows=math.prod(leading),
        columns=head_dim,
        row_stride=step,
        column_stride=1,
        values=values or (None if written else draw.one_of(DATA)),
        written=written,
        shift=shift_of(draw, tidy),
        reference_shape=shape,
    )


def call(op: str, draw: Draw, slots: dict[str, Slot], plain: dict[str, object]) -> LegalCall:
    """A call with bounds on its results; each slot begins anywhere in its pool of values."""
    offsets = {name: draw.below(1 << 30) for name in slots}
    if "slot_mapping" in slots:
        offsets["slot_mapping"] = draw.below(64)
    return LegalCall(op=op, slots=slots, plain=plain, offsets=offsets, judged=WITHIN)
