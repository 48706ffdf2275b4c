"""The gated GEMMs' ops as functions that allocate their results."""

import math

import torch

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP
from gemmill.formats.routed_rows import MOST_GATHERED, can_be_selected, check_each, check_map, check_offsets, selected
from gemmill.formats.ue8m0_scales import Scales, as_float32
from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import check_call, size

__all__ = ["grouped_mm_act_quant", "grouped_mm_act_quant_masked", "scaled_mm_act_quant"]

_SCALED_MM_ACT_QUANT = overload("scaled_mm_act_quant")
_GROUPED, _MASKED = overload("grouped_mm_act_quant"), overload("grouped_mm_act_quant_masked")
_PER_TOKEN = overload("dynamic_per_token_scaled_fp8_quant")


def scaled_mm_act_quant(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    per_token: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """activation(gate) * up of the product a_scales b_scales (a b), whose columns are gates and ups: (out, its scales).

    `a` is [M, K], row-major. `b` is [K, 2 hidden], column-major, in the order of gemmill.quantize.prepack_gate_up. Both
    are float8_e4m3fn, or both int8. Scales are float32, of rows and columns, or for float8_e4m3fn in groups. Those in
    groups may be ue8m0 too, as cutlass_scaled_mm has them: torch makes them float32 at each call. Of rows
    and columns: `a_scales` is one value or [M, 1], and `b_scales` is one value or [2 hidden] in b's order. In groups:
    `a_scales` is [M, ceil(K / g)], and `b_scales` is [ceil(K / g), 2 ceil(hidden / g)] with g = 128 or 32. Its columns
    are the first gates', their ups', the next gates', and so on. Of each gate and up it is [ceil(K / 32), 2 hidden], in
    b's order.

    `activation` is "silu", "gelu", "gelu_tanh" or "swiglu". swiglu holds a gate at `limit` at most, and an up between
    -limit and limit. Its result is gate * sigmoid(alpha gate) * (up + beta). Bits are those of the product in bfloat16,
    then the activation (gemmill.families.gated_mm.reference).

    The result is [M, hidden]. By default it is bfloat16, and its scales are None. With `static_scale`, float32 [1], it
    is float8_e4m3fn, and its scales are None. With a `group_size` of 128, or of 32 where operands have groups of 32, it
    is float8_e4m3fn, and its scales are float32 [M, hidden / group_size]. With `per_token` it is float8_e4m3fn, and its
    scales are float32 [M, 1]. A second launch then codes the bfloat16 result, to the bits of
    dynamic_per_token_scaled_fp8_quant.

    Raises RuntimeError with one sentence where the arguments do not fit. Raises ValueError for another group_size, or
    for scales of two kinds.
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None, per_token=per_token)
    a_scales, b_scales = _as_float32("scaled_mm_act_quant", a, b, a_scales, b_scales, along_k=-2)
    out, scales = _allocated(a, size(b, 1) // 2, static_scale, group_size)
    _SCALED_MM_ACT_QUANT(out, scales, a, b, a_scales, b_scales, activation, alpha, limit, beta, static_scale)
    return _coded_per_token(out) if per_token else (out, scales)


def grouped_mm_act_quant(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    expert_map: torch.Tensor | None = None,
    token_ids: torch.Tensor | None = None,
    per_token: bool = False,
    check: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """scaled_mm_act_quant of rows that belong to experts, each with weights of its own: (out, its scales).

    `a` is [M, K], row-major. `b` is [E, 2 hidden, K], each expert's in the order of gemmill.quantize.prepack_gate_up.
    Both are float8_e4m3fn, or both int8. Rows of expert e are expert_offsets[e] up to expert_offsets[e + 1].
    `expert_offsets` is int32 or int64 on the device, one number more than there are experts. `expert_map` is int32, one
    number for each expert: which of b it multiplies by, or -1 for none. Without a map expert e multiplies by b[e].
    `token_ids` is int32 or int64 [M]: row i of the result comes of row token_ids[i] of a, or of zeros where there is
    none. With token_ids `a` is [T, K], and its scales are of T rows. Above 1,024 rows, and with scales of blocks, a copy selects
    them first.

    Scales are float32, or in groups ue8m0 as grouped_mm has them. Of rows and columns: `a_scales` is one value or
    [M, 1], and `b_scales` is [E] or [E, 2 hidden]
    in b's order. In groups, for float8_e4m3fn: `a_scales` is [M, ceil(K / g)], and `b_scales` is [E, 2 ceil(hidden /
    g), ceil(K / g)] with g = 128 or 32. Its rows are the first gates', their ups', the next gates', and so on. Of each
    gate and up it is [E, 2 hidden, ceil(K / 32)], in b's order.

    `activation`, alpha, limit, beta, `static_scale`, `group_size` and `per_token` are those of scaled_mm_act_quant. The
    op does not write rows of no expert; with `per_token` their codes mean nothing. Bits are those of grouped_mm to
    bfloat16, then the activation.

    Raises RuntimeError with one sentence where the arguments do not fit. Only with `check` does it read the values of
    offsets, map and token_ids, which waits for the device. Raises ValueError for another group_size, or for scales of
    two kinds.
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None, per_token=per_token)
    rows = size(a, 0) if token_ids is None else token_ids.numel()
    a_scales, b_scales = _as_float32("grouped_mm_act_quant", a, b, a_scales, b_scales, check=check)
    of_blocks = b_scales.dim() == 3 and b_scales.shape[1] != size(b, 1)  # whose kernels have rows in order
    if token_ids is not None and (rows > MOST_GATHERED or of_blocks) and can_be_selected(a, a_scales, token_ids):
        rows_of_a, scales_of_a = selected(a, a_scales, token_ids)
        a, a_scales, token_ids = rows_of_a, a_scales if scales_of_a is None else scales_of_a, None
    out, scales = _allocated(a, size(b, 1) // 2, static_scale, group_size, rows if a.dim() == 2 else None)
    numbers = activation, alpha, limit, beta
    given = out, scales, a, b, a_scales, b_scales, expert_offsets, *numbers, static_scale, expert_map, token_ids
    if check:
        check_call("grouped_mm_act_quant", given)
        check_offsets("grouped_mm_act_quant", expert_offsets, rows)
        check_map("grouped_mm_act_quant", expert_map, b.shape[0])
        check_each("grouped_mm_act_quant", "token_ids", token_ids, 0, a.shape[0] - 1, "one of a's rows")
    _GROUPED(*given)
    return _coded_per_token(out) if per_token else (out, scales)


def grouped_mm_act_quant_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    rows: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    expert_map: torch.Tensor | None = None,
    expected_rows: int = 0,
    per_token: bool = False,
    check: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """grouped_mm_act_quant of a [E, max_m, K], whose first rows[e] rows are expert e's: (out, its scales).

    `rows` is int32 or int64 [E], on the device. `a_scales` is one value, [E, max_m, 1], or [E, max_m, ceil(K / g)] with
    all rows at one stride. `expected_rows`, those of an expert, helps to choose a variant; 0 stands for max_m. The
    result is [E, max_m, hidden], its scales [E, max_m, hidden / group_size]. All else is as in grouped_mm_act_quant.

    Raises RuntimeError with one sentence where the arguments do not fit. Raises ValueError for another group_size, or
    for scales of two kinds.
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None, per_token=per_token)
    a_scales, b_scales = _as_float32("grouped_mm_act_quant_masked", a, b, a_scales, b_scales, check=check)
    out, scales = _allocated(a, size(b, 1) // 2, static_scale, group_size)
    numbers = activation, alpha, limit, beta
    given = out, scales, a, b, a_scales, b_scales, rows, *numbers, static_scale, expert_map, expected_rows
    if check:
        check_call("grouped_mm_act_quant_masked", given)
        check_each("grouped_mm_act_quant_masked", "rows", rows, 0, a.shape[1], "rows of an expert's slot")
        check_map("grouped_mm_act_quant_masked", expert_map, b.shape[0])
    _MASKED(*given)
    return _coded_per_token(out) if per_token else (out, scales)


def _as_float32(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    *,
    along_k: int = -1,
    check: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of a and of b [..., 2 hidden, K], or with `along_k` of -2 [K, 2 hidden], in float32, where they are ue8m0."""
    if a_scales.dtype == b_scales.dtype == torch.float32:
        return a_scales, b_scales
    of_a = Scales(name="a_scales", values=a_scales, along_k=-1, rows=size(a, -2), k=size(b, along_k))
    of_b = Scales(
        name="b_scales", values=b_scales, along_k=along_k, rows=size(b, -3 - along_k), k=size(b, along_k), parts=2
    )
    return as_float32(op, of_a, of_b, (GROUP, FINE_GROUP), check=check)


def _coded_per_token(out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of bfloat16 results, and a scale for each row."""
    rows = out.reshape(-1, out.shape[-1])
    codes = rows.new_empty(rows.shape, dtype=torch.float8_e4m3fn)
    scales = rows.new_empty((rows.shape[0], 1), dtype=torch.float32)
    _PER_TOKEN(codes, rows, scales, None)
    return codes.reshape(out.shape), scales.reshape(*out.shape[:-1], 1)


def _check_kinds(**kinds: bool) -> None:
    """Raise ValueError where results are to have scales of two kinds."""
    if sum(kinds.values()) > 1:
        told = " and ".join(name for name, is_given in kinds.items() if is_given)
        raise ValueError(f"{told} are given: results are coded by one kind of scales, leave the others out")


def _allocated(
    a: torch.Tensor,
    hidden: int,
    static_scale: torch.Tensor | None,
    group_size: int | None,
    rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Memory for the result of `rows`, or of a's rows, and for its scales or None.

    Raises ValueError for another group_size than 128 and 32.
    """
    if group_size not in (None, 128, 32):
        raise ValueError(f"group_size is {group_size}, expected 128 or 32, or None for no scales of groups")
    shape = a.shape[:-1] if rows is None else (rows,)
    coded = static_scale is not None or group_size is not None
    out = a.new_empty((*shape, hidden), dtype=torch.float8_e4m3fn if coded else torch.bfloat16)
    return out, None if group_size is None else a.new_empty((*shape, hidden // group_size), dtype=torch.float32)
