"""The arguments that `gemmill explain` asks about a sparse GEMM's op: without data, from sizes and options."""

from typing import Any

from gemmill.families.sparse_mm.ops import SPARSE_MM_AZP
from gemmill.formats.two_to_four import kept_columns, meta_shape
from gemmill.numerics.cases import Question, gemm_sizes, on_meta
from gemmill.vocab import DType


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    azp = q["azp"]
    if (op == SPARSE_MM_AZP.name) == (azp is None):
        raise ValueError(f"{op} with --azp {azp or 'none'}: {SPARSE_MM_AZP.name} takes tensor or token, the other none")
    dtype = DType(q["dtype"] or (DType.E4M3 if azp is None else DType.S8))
    out = DType(q["out"] or (DType.F16 if dtype is DType.F16 else DType.BF16))
    arguments = [
        on_meta(out, m, n),
        on_meta(dtype, m, k),
        on_meta(dtype, n, kept_columns(k, dtype.bits // 8)),
        on_meta(DType.U8, *meta_shape(n, k)),
        on_meta(DType.F32, m, 1),
        on_meta(DType.F32, n, 1),
    ]
    zero_points = [] if azp is None else [on_meta(DType.S32, n), on_meta(DType.S32, m) if azp == "token" else None]
    return [*arguments, *zero_points, on_meta(out, n) if q["bias"] else None]
