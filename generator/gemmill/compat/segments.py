"""Rows of experts that lie apart, as gemmill's grouped GEMMs take them."""

import torch
from torch import Tensor

MOST_APART = 256
"""Experts of a call whose rows lie apart: a kernel takes 512 segments, and behind each are rows of nobody."""


def apart(begins: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The offsets [2 E] and the map int32 [2 E - 1] of segments from begins[e] to ends[e], which need not follow one another.

    Behind each segment are rows of nobody, so E is MOST_APART at most.
    """
    owners = torch.arange(max(2 * len(begins) - 1, 0), dtype=torch.int32, device=begins.device)
    return torch.stack((begins, ends), dim=1).flatten(), torch.where(owners % 2 == 0, owners // 2, -1)


def owners_of(rows: int, begins: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `rows` rows the last expert that begins at it or before, int64 [rows], and whether its segment has the row.

    begins ascend. Segments do not overlap.
    """
    numbers = torch.arange(rows, device=begins.device, dtype=begins.dtype)
    owners = (torch.searchsorted(begins, numbers, right=True) - 1).clamp(min=0)
    return owners, (numbers >= begins[owners]) & (numbers < ends[owners])
