"""Segments: the rows of each expert."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows of one expert."""

    begin: int
    end: int
    weights: int
    """The number of the weights that multiply them."""


def segments(
    offsets: Tensor, rows: int, weights: int, *, slot: int = 0, expert_map: Tensor | None = None
) -> Iterator[Segment]:
    """The owners of `rows` rows: experts that have some, and their weights.

    offsets: [experts + 1], where segments follow one another; of `slot` rows for each expert, the rows used [experts].
    It cuts off rows outside of the tensor, or of a slot. expert_map: of each expert its weights, -1 for none.
    """
    told = offsets.reshape(-1).tolist()
    known = None if expert_map is None else expert_map.reshape(-1).tolist()
    for expert in range(len(told) - (slot == 0)):
        if slot:
            begin = expert * slot
            end = begin + min(max(told[expert], 0), slot)
        else:
            begin = min(max(told[expert], 0), rows)
            end = min(max(told[expert + 1], begin), rows)
        which = expert if known is None else known[expert]
        if end > begin and 0 <= which < weights:
            yield Segment(begin=begin, end=end, weights=which)


def gathered(x: Tensor, token_ids: Tensor) -> Tensor:
    """Rows of x that token_ids name; zeros where there is no such row."""
    ids = token_ids.reshape(-1).long()
    known = (ids >= 0) & (ids < len(x))
    return torch.cat((x, torch.zeros_like(x[:1])))[ids.where(known, len(x))]
