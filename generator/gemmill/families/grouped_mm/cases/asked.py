"""Arguments without data of an op, from the sizes and options of `gemmill explain`."""

from typing import Any

from gemmill.families.grouped_mm.config import FP4_FORMATS, SCALE_GROUPS
from gemmill.families.grouped_mm.ops import GROUPED_MM
from gemmill.families.grouped_mm.packed_ops import FP4_NAMES, GROUPED_FP4_MM
from gemmill.family import any_of
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.numerics.cases import Question, gemm_sizes, on_meta
from gemmill.vocab import DType, ScaleGranularity

_EXPERTS = 8


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    experts = q["experts"] or _EXPERTS
    if op in FP4_NAMES:
        return _of_packed(op, q, m, n, k, experts)
    if q["format"] is not None:
        raise ValueError(f"{op} with --format: weights are numbers, {GROUPED_FP4_MM.name} takes packed ones")
    of_b = ScaleGranularity.GROUP if q["b_scales"] == "rows" else ScaleGranularity.BLOCK
    kind = next((groups for groups in SCALE_GROUPS if (groups.size, groups.b_scale) == (q["group"], of_b)), None)
    if q["group"] and kind is None:
        raise ValueError(
            f"{op} with --group {q['group']}: scales in groups are of {any_of([g.of_b for g in SCALE_GROUPS])}"
        )
    dtype = DType(q["dtype"] or DType.E4M3)
    is_plain, is_masked = dtype.bits == 16, op != GROUPED_MM.name
    result = DType(q["out"] or (dtype if is_plain else DType.BF16))
    if q["group"] and is_plain:
        raise ValueError(f"{op} of {dtype} with --group {q['group']}: operands of 16 bits have no scales")
    if q["indexed"] and is_masked:
        raise ValueError(f"{op} with --indexed: rows of slots are in order, grouped_mm gathers")
    rows = (experts, -(-m // experts)) if is_masked else (m,)
    a_scales: tuple[int, ...] = (*rows, 1)
    b_scales: tuple[int, ...] = (experts, n)
    if kind is not None:
        a_scales, b_scales = (*rows, kind.a_shape(m, k)[1]), (experts, *kind.b_shape(n, k)[::-1])
    return [
        on_meta(result, *rows, n),
        on_meta(dtype, *rows, k),
        on_meta(dtype, experts, n, k),
        None if is_plain else on_meta(DType.F32, *a_scales),
        None if is_plain else on_meta(DType.F32, *b_scales),
        on_meta(DType.S32, experts if is_masked else experts + 1),
        None,
        0 if is_masked else on_meta(DType.S32, m) if q["indexed"] else None,
        None,
        on_meta(result, experts, n) if q["bias"] else None,
    ]


def _of_packed(op: str, q: Question, m: int, n: int, k: int, experts: int) -> list[Any]:
    """The arguments of an op with packed weights."""
    dtype, is_masked = DType(q["dtype"] or DType.BF16), op != GROUPED_FP4_MM.name
    if q["group"]:
        raise ValueError(f"{op} with --group {q['group']}: scales of activations are of rows")
    if q["indexed"] and is_masked:
        raise ValueError(f"{op} with --indexed: rows of slots are in order, {GROUPED_FP4_MM.name} gathers")
    name = q["format"] or ("nvfp4" if dtype is DType.BF16 else "mxfp4")
    format = next((format for format in FP4_FORMATS if str(format) == name), None)
    if format is None:
        raise ValueError(f"{op} with --format {name}: expected {' or '.join(map(str, FP4_FORMATS))}")
    rows = (experts, -(-m // experts)) if is_masked else (m,)
    columns = BLOCK_COLUMNS if dtype is DType.E4M3 else SIDE
    of_block = SIDE * columns // 2 + SIDE * columns // format.group
    return [
        on_meta(DType(q["out"] or DType.BF16), *rows, n),
        on_meta(dtype, *rows, k),
        on_meta(DType.U8, experts, -(-n // SIDE), -(-k // STAGE_COLUMNS) * (STAGE_COLUMNS // columns), of_block),
        on_meta(DType.F32, *rows, 1) if dtype is DType.E4M3 else None,
        on_meta(DType.F32, experts, n),
        None,
        on_meta(DType.BF16, experts, n) if q["bias"] else None,
        on_meta(DType.S32, experts if is_masked else experts + 1),
        None,
        0 if is_masked else on_meta(DType.S32, m) if q["indexed"] else None,
        str(format),
    ]
