"""What `gemmill explain` asks about a GEMM: its arguments without data, from sizes and options."""

from typing import Any

import torch

from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError where op and options contradict each other."""
    q = question
    m, n, k, azp = q["m"], q["n"], q["k"], q["azp"]
    if n is None or k is None or q["hidden"] is not None:
        raise ValueError(f"{op} wants -m, -n and -k, and no --hidden")
    refuse_unused(op, q)
    if (op == SCALED_MM_AZP) == (azp is None):
        raise ValueError(
            f"{op} with --azp {azp or 'none'}: {SCALED_MM} takes none, {SCALED_MM_AZP} takes tensor or token"
        )
    operand = DType.E4M3 if q["dtype"] is None else DType(q["dtype"])
    result = DType(q["out"] or (DType.F16 if operand is DType.F16 else DType.BF16))

    def empty(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> torch.Tensor:
        kind = getattr(torch, dtype.torch_name)
        dense = torch.empty(shape, dtype=kind, device="meta")
        return dense if strides is None else torch.empty_strided(shape, strides, dtype=kind, device="meta")

    lda, ldb, ldd = (dense if q[name] is None else q[name] for name, dense in (("lda", k), ("ldb", k), ("ldd", n)))
    arguments: list[Any] = [
        empty(result, (m, n), (ldd, 1)),
        empty(operand, (m, k), (lda, 1)),
        empty(operand, (k, n), (1, ldb)),
        empty(DType.F32, (m, 1) if q["per_token"] else (1,)),
        empty(DType.F32, (1, n) if q["per_channel"] else (1,)),
    ]
    if azp is not None:
        arguments += [empty(DType.S32, (n,)), empty(DType.S32, (m,)) if azp == "token" else None]
    return [*arguments, empty(result, (n,)) if q["bias"] else None]
