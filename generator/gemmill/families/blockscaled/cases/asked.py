"""Arguments without data of an op, from the sizes and options of `gemmill explain`."""

from typing import Any

import torch

from gemmill.families.blockscaled.cases.calls import arguments_of
from gemmill.families.blockscaled.cases.checked import ROLES_OF
from gemmill.families.blockscaled.ops import FP4_WEIGHT_MM, PAIR_BY_OP
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.formats.layout import BLOCK_COLUMNS, ROW_BYTES, SIDE, STAGE_COLUMNS, swizzled_shape
from gemmill.numerics.cases import Question, gemm_sizes, on_meta
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType, Format


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    if q["format"] is not None and op != FP4_WEIGHT_MM.name:
        raise ValueError(f"{op} with --format: its formats are those of its name")
    if q["bias"] and "bias" not in BY_NAME[op].arguments:
        raise ValueError(f"{op} with --bias: it takes none")
    out_dtype = DType(q["out"] or DType.BF16)
    given = {"alpha": on_meta(DType.F32, 1), "bias": on_meta(out_dtype, n) if q["bias"] else None}
    if op == FP4_WEIGHT_MM.name:
        given |= _weights(q, n, k) | {"a": on_meta(out_dtype, m, k)}
    elif PAIR_BY_OP[op] in FOLDED_PAIRS:
        given |= _folded(PAIR_BY_OP[op], m, n, k) | {"a": on_meta(DType.E4M3, m, k)}
    else:
        given |= _pair(PAIR_BY_OP[op], m, n, k)
    return arguments_of(op, ROLES_OF[op], given, on_meta(out_dtype, m, n))


def _weights(q: Question, n: int, k: int) -> dict[str, Any]:
    pairs = {str(p.b_format): p for p in WEIGHT_PAIRS}
    if (q["format"] or "nvfp4") not in pairs:
        raise ValueError(f"format is {q['format']!r}, expected one of {', '.join(pairs)}")
    pair = pairs[q["format"] or "nvfp4"]
    format = pair.b_format
    told = {"format": str(format), "prepacked": q["prepacked"]}
    code_bytes, groups = k * format.code.bits // 8, k // format.group
    if not q["prepacked"]:
        return told | {"b": on_meta(DType.U8, n, code_bytes), "b_sf": on_meta(DType.U8, n, groups)}
    b = on_meta(DType.U8, n, -(-(code_bytes + groups) // ROW_BYTES) * ROW_BYTES)
    if pair in FP4_PAIRS and q["out"] in (None, "bf16"):
        block_bytes = SIDE * SIDE // 2 + SIDE * SIDE // format.group
        b = on_meta(DType.U8, -(-n // SIDE), -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE, block_bytes)
    return told | {"b": b, "b_sf": on_meta(DType.F32, n)}


def _folded(pair: Pair, m: int, n: int, k: int) -> dict[str, Any]:
    blocks = -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // BLOCK_COLUMNS
    block_bytes = SIDE * BLOCK_COLUMNS // 2 + SIDE * BLOCK_COLUMNS // pair.b_format.group
    b = on_meta(DType.U8, -(-n // SIDE), blocks, block_bytes)
    return {"b": b, "b_sf": on_meta(DType.F32, n), "a_sf": on_meta(DType.F32, m, 1)}


def _pair(pair: Pair, m: int, n: int, k: int) -> dict[str, Any]:
    assert pair.a_format is not None
    (a, a_sf), (b, b_sf) = _codes(pair.a_format, m, k), _codes(pair.b_format, n, k)
    return {"a": a, "a_sf": a_sf, "b": b, "b_sf": b_sf}


def _codes(format: Format, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    columns = k * format.code.bits // 8
    return on_meta(DType.U8, rows, columns), on_meta(DType.U8, *swizzled_shape(rows, k // format.group))
