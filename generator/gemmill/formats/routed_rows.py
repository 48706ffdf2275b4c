"""Rows that belong to experts, before a call of an op: selection of rows by their numbers, and checks of values on
request.
"""

from itertools import pairwise

import torch

MOST_GATHERED, GATHERED_OF_EXPERT = 1024, 16
"""Most rows that the kernel gathers as it loads them, and those for each expert where these are more. A copy selects more rows first.
Gathering 8,192 of 32 experts took 954 us where both steps take 553 (H200, 2026-11-22); of 128 experts with 16 rows each selecting first
took 1.07 to 1.18 times as long (2026-11-28; notes of grouped GEMMs).
"""


def most_gathered(experts: int) -> int:
    """Rows of so many experts up to which the kernel gathers."""
    return max(MOST_GATHERED, GATHERED_OF_EXPERT * experts)


def can_be_selected(a: torch.Tensor, a_scales: torch.Tensor | None, token_ids: torch.Tensor) -> bool:
    """Whether rows can be selected before the call of the op. Where they cannot, the op says why not."""
    if a.dim() != 2 or len(a) == 0:
        return False
    is_scaled_by_row = a_scales is None or a_scales.numel() == 1 or (a_scales.dim() > 0 and len(a_scales) == len(a))
    return is_scaled_by_row and token_ids.dtype in (torch.int32, torch.int64) and token_ids.device == a.device


def selected(
    a: torch.Tensor, a_scales: torch.Tensor | None, token_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The rows that numbers name, with their scales; zeros where a number is of no row."""
    ids = token_ids.reshape(-1)
    ids = ids.where((ids >= 0) & (ids < a.shape[0]), a.shape[0])
    if a_scales is None:
        return _rows_of(a, ids), None
    if a_scales.numel() == 1:
        a_scales = a_scales.reshape(1, 1).expand(len(a), 1)
    return _rows_of(a, ids), _rows_of(a_scales, ids)


def _rows_of(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    codes = x.view(torch.int8) if x.element_size() == 1 else x
    return torch.cat((codes, codes.new_zeros((1, *codes.shape[1:])))).index_select(0, ids).view(x.dtype)


def check_offsets(op: str, offsets: torch.Tensor, rows: int) -> None:
    """Raise RuntimeError where offsets decrease, or name rows that there are not. Waits for the device."""
    check_each(op, "expert_offsets", offsets, 0, rows, "a row, or the end of all rows")
    for expert, (begin, end) in enumerate(pairwise(offsets.reshape(-1).tolist())):
        if end < begin:
            raise RuntimeError(
                f"{op}: expert_offsets[{expert}] is {begin} and expert_offsets[{expert + 1}] is {end}: offsets must not "
                "decrease, each is the end of the expert before and the first row of the next"
            )


def check_map(op: str, expert_map: torch.Tensor | None, weights: int) -> None:
    """Raise RuntimeError where a map names weights that there are not. Waits for the device."""
    check_each(op, "expert_map", expert_map, -1, weights - 1, "weights of an expert, or -1 for none")


def check_each(op: str, name: str, values: torch.Tensor | None, least: int, most: int, what: str) -> None:
    """Raise RuntimeError with the first value that is out of bounds. Waits for the device."""
    for i, value in enumerate([] if values is None else values.reshape(-1).tolist()):
        if not least <= value <= most:
            raise RuntimeError(f"{op}: {name}[{i}] is {value}, expected {least} to {most}: {what}")
