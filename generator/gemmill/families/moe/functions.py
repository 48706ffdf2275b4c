"""The ops as functions that allocate what they return."""

import torch

from gemmill.runtime.ops import overload

__all__ = ["grouped_mm", "grouped_mm_masked"]

_GROUPED_MM, _GROUPED_MM_MASKED = overload("grouped_mm"), overload("grouped_mm_masked")


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """out[i, n] = a_scales[i] b_scales[e, n] sum over k of a[i, k] b[e, n, k] for rows i of expert e.

    a is [M, K] and b [E, N, K], both float8_e4m3fn or int8. Rows of expert e are expert_offsets[e] up to expert_offsets[e + 1]:
    int32 or int64 [E + 1], ascending, on the device. a_scales are float32, one value or [M, 1], b_scales [E] or [E, N]. Or
    in groups, with float8_e4m3fn: a_scales [M, K/128], b_scales [E, N/128, K/128], sizes rounded up, any strides. expert_map
    is int32 [E]: which of b an expert multiplies by, -1 for none. out is [M, N], bfloat16 or float16; rows of no expert are not
    written. Raises RuntimeError with one sentence where the arguments do not fit. Values of offsets are not looked at. Whatever
    they are, nothing is read or written outside of the operands.
    """
    out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    _GROUPED_MM(out, a, b, a_scales, b_scales, expert_offsets, expert_map)
    return out


def grouped_mm_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    rows: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    expected_rows: int = 0,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The same of a [E, max_m, K], of which the first rows[e] rows are expert e's: rows is int32 or int64 [E], on the device.

    a_scales are [E, max_m, 1], or [E, max_m, K/128] with all rows at one stride. expected_rows, of an expert, helps to choose a
    variant; 0 stands for max_m. out is [E, max_m, N].
    """
    out = a.new_empty((*a.shape[:2], b.shape[1]), dtype=out_dtype)
    _GROUPED_MM_MASKED(out, a, b, a_scales, b_scales, rows, expert_map, expected_rows)
    return out
