"""The arguments that `gemmill explain` asks about a GEMM: without data, from sizes and options."""

from typing import Any

import torch

from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP
from gemmill.families.scaled_mm.cases import own
from gemmill.families.scaled_mm.own import operands_of
from gemmill.family import any_of
from gemmill.numerics.cases import Question, gemm_sizes
from gemmill.vocab import GROUP_SIZES, SCALE_GROUPS, DType, ScaleGranularity


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError where op and options contradict each other."""
    q, (m, n, k) = question, gemm_sizes(op, question)
    azp = q["azp"]
    traced = own.epilogue_of(op)
    if traced is None and op.endswith(SCALED_MM_AZP) == (azp is None):
        raise ValueError(
            f"{op} with --azp {azp or 'none'}: {SCALED_MM} takes none, {SCALED_MM_AZP} takes tensor or token"
        )
    operand = DType.E4M3 if q["dtype"] is None else DType(q["dtype"])
    result = DType(q["out"] or (DType.F16 if operand is DType.F16 else DType.BF16))

    if traced is not None:
        operand = DType.S8 if operands_of(traced) == (DType.S8,) else operand
        return own.asked(traced, m, n, k, operand, result)

    def empty(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> torch.Tensor:
        kind = getattr(torch, dtype.torch_name)
        dense = torch.empty(shape, dtype=kind, device="meta")
        return dense if strides is None else torch.empty_strided(shape, strides, dtype=kind, device="meta")

    lda, ldb, ldd = (dense if q[name] is None else q[name] for name, dense in (("lda", k), ("ldb", k), ("ldd", n)))
    arguments: list[Any] = [
        empty(result, (m, n), (ldd, 1)),
        empty(operand, (m, k), (lda, 1)),
        empty(operand, (k, n), (1, ldb)),
        *(empty(DType.F32, *laid_out) for laid_out in _scales(op, q)),
    ]
    if azp is not None:
        arguments += [empty(DType.S32, (n,)), empty(DType.S32, (m,)) if azp == "token" else None]
    return [*arguments, empty(result, (n,)) if q["bias"] else None]


Layout = tuple[tuple[int, int] | tuple[int], tuple[int, int] | None]
"""A shape, and its strides where the elements do not lie in order."""


def _scales(op: str, q: Question) -> tuple[Layout, Layout]:
    """The layouts of the scales of a and of b."""
    m, n, k = q["m"], q["n"], q["k"]
    if q["group"] is None:
        if given := [
            option for option, value in (("--b-scales", q["b_scales"]), ("--scales-m-major", q["m_major"])) if value
        ]:
            raise ValueError(f"{op} with {given[0]} and no --group: its scales are not of groups")
        return ((m, 1) if q["per_token"] else (1,), None), ((1, n) if q["per_channel"] else (1,), None)
    if given := [
        option for option, is_on in (("--per-tensor", q["per_token"]), ("--one-b-scale", q["per_channel"])) if not is_on
    ]:
        raise ValueError(f"{op} with --group and {given[0]}: scales are of groups or of the whole tensor")
    of_b = ScaleGranularity.GROUP if q["b_scales"] == "rows" else ScaleGranularity.BLOCK
    groups = next((groups for groups in SCALE_GROUPS if (groups.size, groups.b_scale) == (q["group"], of_b)), None)
    if groups is None:
        sizes = any_of([str(size) for size in GROUP_SIZES])
        raise ValueError(f"{op} with --group {q['group']}: groups have {sizes} elements")
    b_rows, b_columns = groups.b_shape(n, k)
    return (groups.a_shape(m, k), (1, -(-m // 4) * 4) if q["m_major"] else None), ((b_rows, b_columns), (1, b_rows))
