"""Tensors of random calls whose rows belong to experts."""

import math
from dataclasses import replace
from itertools import accumulate

import torch

from gemmill.family.operand import TMA_BYTES
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Slot

INTEGERS = (torch.int32, torch.int64)


def routed(
    draw: Draw, counts: list[int], rows: int, tokens: int, *, spare: int, masked: bool, indexed: bool
) -> dict[str, Slot]:
    """Offsets or rows used, sometimes a map, and token ids, of which some are nowhere."""
    told = counts if masked else list(accumulate(counts, initial=spare))
    slots = {
        "rows" if masked else "expert_offsets": replace(
            dense(draw.one_of(INTEGERS), (len(told),), None), values=tuple(told)
        )
    }
    if indexed:
        ids = tuple(draw.below(tokens + 2) - 1 for _ in range(rows))
        slots["token_ids"] = replace(dense(draw.one_of(INTEGERS), (rows,), None), values=ids)
    if draw.chance(0.2):
        mapped = tuple(draw.shuffled([e if draw.chance(0.8) else -1 for e in range(len(counts))]))
        slots["expert_map"] = replace(dense(torch.int32, (len(counts),), None), values=mapped)
    return slots


def first_poisoned(draw: Draw, slots: dict[str, Slot], *, exact: bool) -> dict[str, Slot]:
    """The slots of gathered rows where nobody names row 0 and its scales are no numbers, now and then: they must reach no row."""
    ids, scales = slots.get("token_ids"), slots.get("a_scales")
    if ids is None or scales is None or scales.rows != slots["a"].rows or draw.chance(0.5):
        return slots
    assert isinstance(ids.values, tuple)
    others = [2.0 ** -draw.below(3) if exact else 0.005 + 0.00001 * draw.below(1000) for _ in range(scales.numel)]
    poison = (draw.one_of((math.nan, math.inf)),) * scales.columns
    return slots | {
        "token_ids": replace(ids, values=tuple(token or -1 for token in ids.values)),
        "a_scales": replace(scales, values=(*poison, *others[scales.columns :])),
    }


def aligned(draw: Draw, x: Slot, tidy: bool) -> Slot:
    """A matrix with rows at multiples of 16 bytes, apart or not, if `tidy`."""
    if not tidy:
        return x
    stride = x.columns + draw.one_of((0, 0, 16, 48))
    between = draw.below(1 << 40) if x.rows == 1 and draw.chance(0.5) else stride  # of one row it means nothing
    return replace(x, strides=(between, 1), row_stride=stride, column_stride=1, shift=draw.one_of((0, 0, 16)))


def dense(dtype: torch.dtype, shape: tuple[int, ...], values: str | None) -> Slot:
    """A contiguous tensor: all dimensions but the last are its rows."""
    columns = shape[-1]
    rows = torch.Size(shape[:-1]).numel()
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=tuple(torch.empty(shape, device="meta", dtype=torch.float32).stride()),
        rows=rows,
        columns=columns,
        row_stride=columns,
        column_stride=1,
        values=values,
        reference_shape=shape,
    )


def in_slots(draw: Draw, x: Slot, experts: int, slot: int) -> Slot:
    """Rows [experts * slot, columns] as [experts, slot, columns]."""
    shape = (experts, slot, x.columns)
    between = (
        draw.below(1 << 40) if experts == 1 and draw.chance(0.3) else slot * x.row_stride
    )  # of one expert it means nothing
    return replace(x, shape=shape, strides=(between, x.row_stride, x.column_stride), reference_shape=shape)


def is_aligned(x: Slot) -> bool:
    """Whether TMA takes the matrix."""
    size = x.dtype.itemsize
    ends = x.columns if x.written else 0
    apart = x.rows > 1 and (x.row_stride < x.columns or x.row_stride * size % TMA_BYTES)
    return not apart and (x.shift * size) % TMA_BYTES == 0 and (x.columns * size | ends * size) % TMA_BYTES == 0
