"""The arguments that `gemmill explain` asks about a sparse GEMM's op: without data, from sizes and options."""

from typing import Any

import torch

from gemmill.families.sparse_mm.ops import SPARSE_MM_AZP
from gemmill.formats.two_to_four import kept_columns, meta_shape
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q = question
    m, n, k, azp = q["m"], q["n"], q["k"], q["azp"]
    if n is None or k is None or q["hidden"] is not None:
        raise ValueError(f"{op} wants -m, -n and -k, and no --hidden")
    refuse_unused(op, q)
    if (op == SPARSE_MM_AZP.name) == (azp is None):
        raise ValueError(f"{op} with --azp {azp or 'none'}: {SPARSE_MM_AZP.name} takes tensor or token, the other none")
    dtype = DType(q["dtype"] or (DType.E4M3 if azp is None else DType.S8))
    out = DType(q["out"] or (DType.F16 if dtype is DType.F16 else DType.BF16))
    arguments = [
        _empty(out, m, n),
        _empty(dtype, m, k),
        _empty(dtype, n, kept_columns(k, dtype.bits // 8)),
        _empty(DType.U8, *meta_shape(n, k)),
        _empty(DType.F32, m, 1),
        _empty(DType.F32, n, 1),
    ]
    zero_points = [] if azp is None else [_empty(DType.S32, n), _empty(DType.S32, m) if azp == "token" else None]
    return [*arguments, *zero_points, _empty(out, n) if q["bias"] else None]


def _empty(dtype: DType, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")
