"""What `gemmill explain` asks about an op: arguments without data, from sizes and options."""

from typing import Any

import torch

from gemmill.families.moe.config import GROUP
from gemmill.families.moe.ops import GROUPED_MM
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType

_EXPERTS = 8


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for what the op does not take."""
    q = question
    m, n, k, experts = q["m"], q["n"], q["k"], q["experts"] or _EXPERTS
    if n is None or k is None or q["hidden"] is not None:
        raise ValueError(f"{op} wants -m, -n and -k, and no --hidden")
    refuse_unused(op, q)
    if q["group"] not in (None, 0, GROUP):
        raise ValueError(f"{op} with --group {q['group']}: it has groups of {GROUP}, or none")
    dtype, groups = DType(q["dtype"] or DType.E4M3), (-(-n // GROUP), -(-k // GROUP))
    is_plain, is_masked = dtype.bits == 16, op != GROUPED_MM.name
    if q["group"] and is_plain:
        raise ValueError(f"{op} of {dtype} with --group {q['group']}: operands of 16 bits have no scales")
    if q["indexed"] and is_masked:
        raise ValueError(f"{op} with --indexed: rows of slots are in order, grouped_mm gathers")
    rows = (experts, -(-m // experts)) if is_masked else (m,)
    a_scales, b_scales = ((*rows, groups[1]), (experts, *groups)) if q["group"] else ((*rows, 1), (experts, n))
    return [
        _empty(DType(q["out"] or (dtype if is_plain else DType.BF16)), *rows, n),
        _empty(dtype, *rows, k),
        _empty(dtype, experts, n, k),
        None if is_plain else _empty(DType.F32, *a_scales),
        None if is_plain else _empty(DType.F32, *b_scales),
        _empty(DType.S32, experts if is_masked else experts + 1),
        None,
        0 if is_masked else _empty(DType.S32, m) if q["indexed"] else None,
    ]


def _empty(dtype: DType, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")
