"""Arguments without data of the op, from the sizes and options of `gemmill explain`."""

import math
from typing import Any

from gemmill.families.fused_experts.config import CODED, GROUPS
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.packing import PACKING_NAMES, PACKINGS
from gemmill.family import any_of
from gemmill.numerics.cases import Question, gemm_sizes, on_meta
from gemmill.vocab import DType

_EXPERTS, _TOPK = 8, 2


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    experts, topk = q["experts"] or _EXPERTS, q["topk"] or _TOPK
    if op == FUSED_FP4_EXPERTS.name:
        return _of_packed(op, q, m, n, k, experts, topk)
    if q["format"] is not None:
        raise ValueError(f"{op} with --format: weights are numbers, {FUSED_FP4_EXPERTS.name} takes packed ones")
    if q["group"] not in (None, 0, *GROUPS):
        raise ValueError(f"{op} with --group {q['group']}: it has groups of {any_of(list(map(str, GROUPS)))}, or none")
    dtype, inner = DType(q["dtype"] or CODED), n // 2
    out = DType(q["out"] or (DType.BF16 if dtype is CODED else dtype))
    if q["group"] and dtype is not CODED:
        raise ValueError(f"{op} of {dtype} with --group {q['group']}: weights of 16 bits have no scales")
    shapes: list[tuple[int, ...]] = [(experts, n), (experts, k)]
    if q["group"]:
        blocks = [-(-size // q["group"]) for size in (n, k, inner)]
        shapes = [(experts, blocks[0], blocks[1]), (experts, blocks[1], blocks[2])]
    return [
        on_meta(out, m, k),
        on_meta(out, m, k),
        on_meta(dtype, experts, n, k),
        on_meta(dtype, experts, k, inner),
        *(on_meta(DType.F32, *shape) if dtype is CODED else None for shape in shapes),
        on_meta(DType.S32, m, topk),
        on_meta(DType.F32, m, topk),
        "silu",
        1.0,
        math.inf,
        0.0,
        0,
        False,
        False,
        *(None,) * 4,
    ]


def _of_packed(op: str, q: Question, m: int, n: int, k: int, experts: int, topk: int) -> list[Any]:
    """The arguments of the op for packed weights. Raises ValueError for a question that it does not accept."""
    if q["group"] or q["dtype"] or q["out"]:
        raise ValueError(f"{op} with --group, --dtype or --out: x and out are bf16, weights have bases of rows")
    name = q["format"] or PACKING_NAMES[0]
    if name not in PACKING_NAMES:
        raise ValueError(f"{op} with --format {name}: expected {', '.join(PACKING_NAMES[:-1])} or {PACKING_NAMES[-1]}")
    packing = PACKINGS[PACKING_NAMES.index(name)]
    return [
        on_meta(DType.BF16, m, k),
        on_meta(DType.BF16, m, k),
        *(on_meta(DType.U8, *packing.blocks_shape(experts, *shape)) for shape in ((n, k), (k, n // 2))),
        on_meta(DType.F32, experts, n),
        on_meta(DType.F32, experts, k),
        on_meta(DType.S32, m, topk),
        on_meta(DType.F32, m, topk),
        "silu",
        1.0,
        math.inf,
        0.0,
        PACKINGS.index(packing),
        2,
        False,
        False,
        *(None,) * 4,
    ]
