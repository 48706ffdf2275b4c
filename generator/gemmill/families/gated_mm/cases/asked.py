"""What `gemmill explain` asks about an op: arguments without data, from sizes and options."""

import math
from typing import Any

import torch

from gemmill.families.gated_mm.config import GROUP
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for what the op does not take."""
    q = question
    m, n, k = q["m"], q["n"], q["k"]
    if n is None or k is None or q["hidden"] is not None:
        raise ValueError(f"{op} wants -m, -n and -k, and no --hidden")
    refuse_unused(op, q)
    group = q["group"] or 0
    if group not in (0, GROUP):
        raise ValueError(f"{op} with --group {group}: it has groups of {GROUP}, or none")
    out = DType(q["out"] or (DType.E4M3 if group else DType.BF16))
    if group and out is not DType.E4M3:
        raise ValueError(f"{op} with --group {group} and --out {out}: scales of groups belong to e4m3")
    in_groups, k_groups = bool(q["in_groups"]), -(-k // GROUP)
    activation, hidden = q["activation"] or "silu", n // 2
    numbers = (1.702, 7.0, 1.0) if activation == "swiglu" else (1.0, math.inf, 0.0)
    return [
        _empty(out, m, hidden),
        _empty(DType.F32, m, hidden // GROUP) if group else None,
        _empty(DType.E4M3, m, k),
        _empty(DType.E4M3, n, k).t(),
        _empty(DType.F32, m, k_groups) if in_groups else _empty(DType.F32, m, 1),
        _empty(DType.F32, k_groups, 2 * -(-hidden // GROUP)) if in_groups else _empty(DType.F32, n),
        activation,
        *numbers,
        _empty(DType.F32, 1) if out is DType.E4M3 and not group else None,
    ]


def _empty(dtype: DType, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")
