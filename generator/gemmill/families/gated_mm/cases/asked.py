"""The arguments that `gemmill explain` asks about a gated GEMM's op: without data, from sizes and options."""

import math
from typing import Any

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES, GROUPED_MM_ACT_QUANT
from gemmill.numerics.cases import Question, gemm_sizes, on_meta
from gemmill.vocab import DType

_EXPERTS = 8


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    if q["experts"] is not None and op not in EXPERT_NAMES:
        raise ValueError(
            f"{op} with --experts: its rows have one layer's weights, {GROUPED_MM_ACT_QUANT.name} has experts'"
        )
    if q["indexed"] and op != GROUPED_MM_ACT_QUANT.name:
        raise ValueError(f"{op} with --indexed: its rows are in order, {GROUPED_MM_ACT_QUANT.name} gathers them")
    group, experts = q["group"] or 0, q["experts"] or _EXPERTS if op in EXPERT_NAMES else 0
    if group not in (0, GROUP, FINE_GROUP):
        raise ValueError(f"{op} with --group {group}: it has groups of {GROUP} or {FINE_GROUP}, or none")
    if group == FINE_GROUP and not q["in_groups"]:
        raise ValueError(f"{op} with --group {group}: operands have such groups too, add --in-groups")
    out = DType(q["out"] or (DType.E4M3 if group else DType.BF16))
    if group and out is not DType.E4M3:
        raise ValueError(f"{op} with --group {group} and --out {out}: scales of groups belong to e4m3")
    dtype, in_groups, size = DType(q["dtype"] or DType.E4M3), bool(q["in_groups"]), group or GROUP
    k_groups = -(-k // size)
    if in_groups and dtype is not DType.E4M3:
        raise ValueError(f"{op} of {dtype} with --in-groups: such scales come with {DType.E4M3}")
    activation, hidden = q["activation"] or "silu", n // 2
    numbers = (1.702, 7.0, 1.0) if activation == "swiglu" else (1.0, math.inf, 0.0)
    if op in EXPERT_NAMES:
        kinds = dtype, out, group, in_groups, bool(q["indexed"])
        return _of_experts(op, (m, n, k, experts), kinds, (activation, *numbers))
    return [
        on_meta(out, m, hidden),
        on_meta(DType.F32, m, hidden // size) if group else None,
        on_meta(dtype, m, k),
        on_meta(dtype, n, k).t(),
        on_meta(DType.F32, m, k_groups) if in_groups else on_meta(DType.F32, m, 1),
        on_meta(DType.F32, k_groups, 2 * -(-hidden // size)) if in_groups else on_meta(DType.F32, n),
        activation,
        *numbers,
        on_meta(DType.F32, 1) if out is DType.E4M3 and not group else None,
    ]


def _of_experts(
    op: str, sizes: tuple[int, int, int, int], kinds: tuple[DType, DType, int, bool, bool], numbers: tuple[Any, ...]
) -> list[Any]:
    """The arguments of an op whose rows belong to experts."""
    (m, n, k, experts), (dtype, out, group, in_groups, indexed) = sizes, kinds
    size = group or GROUP
    is_masked, hidden, k_groups = op != GROUPED_MM_ACT_QUANT.name, n // 2, -(-k // size)
    rows = (experts, -(-m // experts)) if is_masked else (m,)
    return [
        on_meta(out, *rows, hidden),
        on_meta(DType.F32, *rows, hidden // size) if group else None,
        on_meta(dtype, *rows, k),
        on_meta(dtype, experts, n, k),
        on_meta(DType.F32, *rows, k_groups) if in_groups else on_meta(DType.F32, *rows, 1),
        on_meta(DType.F32, experts, 2 * -(-hidden // size), k_groups) if in_groups else on_meta(DType.F32, experts, n),
        on_meta(DType.S32, experts if is_masked else experts + 1),
        *numbers,
        on_meta(DType.F32, 1) if out is DType.E4M3 and not group else None,
        None,
        0 if is_masked else on_meta(DType.S32, m) if indexed else None,
    ]
