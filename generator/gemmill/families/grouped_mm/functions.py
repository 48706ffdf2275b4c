"""The ops as functions that allocate their results, and that check values of offsets on request."""

from typing import Any

import torch

from gemmill.families.grouped_mm.config import SCALE_GROUPS
from gemmill.formats.routed_rows import can_be_selected, check_each, check_map, check_offsets, most_gathered, selected
from gemmill.formats.ue8m0_scales import Scales, as_float32
from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import check_call, size

__all__ = ["grouped_mm", "grouped_mm_masked"]

_GROUPED_MM, _GROUPED_MM_MASKED = overload("grouped_mm"), overload("grouped_mm_masked")
_FP4_MM, _FP4_MM_MASKED = overload("grouped_fp4_mm"), overload("grouped_fp4_mm_masked")


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor | None,
    b_scales: torch.Tensor | None,
    expert_offsets: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    token_ids: torch.Tensor | None = None,
    check: bool = False,
    *,
    format: str | None = None,
    alpha: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[i, n] = alpha[e] a_scales[i] b_scales[e, n] sum over k of a[i, k] b[e, n, k] + bias[e, n] for rows i of expert e.

    a is [M, K] and b [E, N, K], both of one dtype: float8_e4m3fn, int8, bfloat16 or float16. Operands of 16 bits have
    no scales: both are None. Others have float32 scales: a_scales one value or [M, 1], b_scales [E] or [E, N].
    float8_e4m3fn may have them in groups of g = 128 or 32: a_scales [M, K/g], b_scales [E, N/g, K/g], or of rows in
    groups of 32 [E, N, K/32]. Sizes round up, and strides are free. Scales may be ue8m0 bytes too, uint8 or
    float8_e8m0fnu, or int32 words of four bytes along K, in place of K/g. torch makes them float32 at each call, so
    those of weights are better made once, by .float(). out is [M, N], bfloat16 by default or float16; of 16-bit
    operands it has their dtype.

    Rows of expert e are expert_offsets[e] up to expert_offsets[e + 1]: int32 or int64 [E + 1], ascending, on the
    device. The op does not write rows of no expert. expert_map is int32 [E]: the index in b of an expert's weights, -1
    for none. token_ids is int32 or int64 [M]: row i of out comes of row token_ids[i] of a, of zeros where there is
    none. With token_ids a is [T, K], and its scales are of T rows. alpha is float32 [E], and bias [E, N] of out's
    dtype, contiguous. Both belong to the weights, as b does.

    With `format`, "nvfp4" or "mxfp4", b are packed weights of 4 bits from gemmill.quantize.prepack_experts. b is then
    `blocks` [E, N / 64, ...], and b_scales is `base` [E, N]. a is bfloat16, and a_scales None; with mxfp4 a may be
    float8_e4m3fn, with scales. out is bfloat16. alpha is 1 / the weights' global scales.

    Raises RuntimeError with one sentence where the arguments do not fit. Only with `check` does it read the values of
    offsets, map and token_ids, and refuse ue8m0 bytes of NaN (255), which waits for the device. Whatever they are, the
    op reads and writes nothing outside of the operands.
    """
    rows = size(a, 0) if token_ids is None else token_ids.numel()
    _check_packed("grouped_mm", format, b_scales)
    if format is None and a_scales is not None and b_scales is not None:
        a_scales, b_scales = _as_float32("grouped_mm", a, b, a_scales, b_scales, check=check)
    columns = size(b, 1) if format is None or b_scales is None else size(b_scales, -1)
    out = a.new_empty((rows, columns), dtype=out_dtype or _result_of(a))
    if (
        token_ids is not None
        and rows > most_gathered(size(b, 0) if format is None else 0)
        and can_be_selected(a, a_scales, token_ids)
    ):
        a, a_scales = selected(a, a_scales, token_ids)
        token_ids = None
    given: tuple[Any, ...] = out, a, b, a_scales, b_scales, expert_offsets, expert_map, token_ids, alpha, bias
    if format is not None:
        given = out, a, b, a_scales, b_scales, alpha, bias, expert_offsets, expert_map, token_ids, format
    if check:
        check_call("grouped_mm" if format is None else "grouped_fp4_mm", given)
        check_offsets("grouped_mm", expert_offsets, rows)
        check_map("grouped_mm", expert_map, b.shape[0])
        check_each("grouped_mm", "token_ids", token_ids, 0, a.shape[0] - 1, "one of a's rows")
    (_GROUPED_MM if format is None else _FP4_MM)(*given)
    return out


def grouped_mm_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor | None,
    b_scales: torch.Tensor | None,
    rows: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    expected_rows: int = 0,
    out_dtype: torch.dtype | None = None,
    check: bool = False,
    *,
    format: str | None = None,
    alpha: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """grouped_mm of a [E, max_m, K], of which the first rows[e] rows are expert e's: rows is int32 or int64 [E], on the
    device.

    a_scales are [E, max_m, 1], or [E, max_m, K/g] with all rows at one stride. out is [E, max_m, N]. expected_rows is
    an estimate of an expert's rows, which helps to choose a variant, and 0 stands for max_m. Raises RuntimeError with
    one sentence where the arguments do not fit.
    """
    _check_packed("grouped_mm_masked", format, b_scales)
    if format is None and a_scales is not None and b_scales is not None:
        a_scales, b_scales = _as_float32("grouped_mm_masked", a, b, a_scales, b_scales, check=check)
    columns = size(b, 1) if format is None or b_scales is None else size(b_scales, -1)
    out = a.new_empty((*a.shape[:2], columns), dtype=out_dtype or _result_of(a))
    given: tuple[Any, ...] = out, a, b, a_scales, b_scales, rows, expert_map, expected_rows, alpha, bias
    if format is not None:
        given = out, a, b, a_scales, b_scales, alpha, bias, rows, expert_map, expected_rows, format
    if check:
        check_call("grouped_mm_masked" if format is None else "grouped_fp4_mm_masked", given)
        check_each("grouped_mm_masked", "rows", rows, 0, a.shape[1], "rows of an expert's slot")
        check_map("grouped_mm_masked", expert_map, b.shape[0])
    (_GROUPED_MM_MASKED if format is None else _FP4_MM_MASKED)(*given)
    return out


def _as_float32(
    op: str, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor, *, check: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of both operands in float32, where they are ue8m0."""
    if a_scales.dtype == b_scales.dtype == torch.float32:
        return a_scales, b_scales
    of_a = Scales(name="a_scales", values=a_scales, along_k=-1, rows=size(a, -2), k=size(b, -1))
    of_b = Scales(name="b_scales", values=b_scales, along_k=-1, rows=size(b, -2), k=size(b, -1))
    sizes = dict.fromkeys(groups.size for groups in SCALE_GROUPS)
    return as_float32(op, of_a, of_b, list(sizes), check=check)


def _check_packed(op: str, format: str | None, b_scales: torch.Tensor | None) -> None:
    """Raise RuntimeError where packed weights come without bases."""
    if format is not None and b_scales is None:
        raise RuntimeError(f"{op}: format is {format!r} and b_scales is None: packed weights have bases")


def _result_of(a: torch.Tensor) -> torch.dtype:
    return a.dtype if a.element_size() == 2 else torch.bfloat16
