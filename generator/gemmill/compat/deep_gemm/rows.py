"""DeepGEMM's contiguous layouts: whose each row is, and where rows of padding are."""

import torch
from torch import Tensor

from gemmill.compat.segments import apart, owners_of

LEGACY_ALIGNMENT = 128
_alignment = LEGACY_ALIGNMENT


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Let rows of each expert begin at multiples of `new_value`, for calls with use_psum_layout.

    Raises RuntimeError for a number below 1.
    """
    global _alignment
    if new_value < 1:
        raise RuntimeError(
            f"set_mk_alignment_for_contiguous_layout: new_value is {new_value}, expected a number of rows from 1 on"
        )
    _alignment = new_value


def get_mk_alignment_for_contiguous_layout() -> int:
    """The multiple at which rows of each expert begin; 128 until it is set."""
    return _alignment


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """DeepGEMM's answer on Hopper, 128 for any expected_m. gemmill's kernels take any multiple equally well."""
    return LEGACY_ALIGNMENT


def check_layout(name: str, layout: Tensor, rows: int, experts: int, by_ends: bool, expected_m: int | None) -> None:
    """Raises RuntimeError, in a sentence, unless a layout has a number for each row, or by_ends for each expert."""
    wanted, what = (experts, "where the rows of each expert end") if by_ends else (rows, "the expert of each row")
    if layout.dtype not in (torch.int32, torch.int64) or layout.shape != (wanted,):
        raise RuntimeError(
            f"{name}: grouped_layout is {layout.dtype} {list(layout.shape)}, expected torch.int32 [{wanted}], {what}"
        )
    if expected_m is not None and not by_ends:
        raise RuntimeError(
            f"{name}: expected_m_for_psum_layout is {expected_m} without use_psum_layout: leave it out, or give both"
        )


def segments(layout: Tensor, experts: int, by_ends: bool, alignment: int | None) -> tuple[Tensor, Tensor]:
    """The offsets and the map of rows, as gemmill's grouped GEMMs take them."""
    if by_ends:
        return apart(*_ends(layout, alignment))
    rows = torch.arange(len(layout), device=layout.device, dtype=torch.int64)
    owner = torch.where(_is_known(layout, experts), layout, experts).long()
    begins = torch.full((experts + 1,), len(rows), device=rows.device, dtype=torch.int64).scatter_reduce_(
        0, owner, rows, "amin"
    )
    counts = torch.zeros_like(begins).scatter_add_(0, owner, torch.ones_like(rows))
    return apart(begins[:-1], (begins + counts)[:-1])


def zero_padding(d: Tensor, layout: Tensor, experts: int, by_ends: bool, alignment: int | None) -> None:
    """Write zeros to rows of nobody in d [M, N]: by ends those between an expert's end and the next multiple, else all."""
    if by_ends:
        begins, ends = _ends(layout, alignment)
        owners, in_slot = owners_of(len(d), begins, _up(ends, alignment))
        numbers = torch.arange(len(d), device=d.device, dtype=ends.dtype)
        padding = in_slot & (numbers >= ends[owners])
    else:
        padding = ~_is_known(layout, experts)
    d.masked_fill_(padding[:, None], 0)


def _is_known(layout: Tensor, experts: int) -> Tensor:
    """Whether a row has an expert: unwritten entries may hold any number."""
    return (layout >= 0) & (layout < experts)


def _ends(layout: Tensor, alignment: int | None) -> tuple[Tensor, Tensor]:
    """Where rows of each expert begin and end."""
    return torch.cat((torch.zeros_like(layout[:1]), _up(layout[:-1], alignment))), layout


def _up(ends: Tensor, alignment: int | None) -> Tensor:
    multiple = _alignment if alignment is None else alignment
    return (ends + multiple - 1) // multiple * multiple
