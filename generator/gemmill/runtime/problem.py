"""What a call asks of a variant, as far as the choice depends on it. Mirrors `Call` in kernels/extension/selection.h."""

from dataclasses import dataclass
from enum import IntEnum

from gemmill.families.scaled_mm.accepts import Predicate
from gemmill.families.scaled_mm.ops import SCALED_MM_AZP
from gemmill.families.scaled_mm.scales import groups_of_call, mn_major
from gemmill.runtime.operands import Call, Operand
from gemmill.runtime.schemas import OpSchema
from gemmill.vocab import SCALE_GROUPS, DType, ScaleGranularity, ScaleGroups, ScaleLayout

TMA_BYTES = 16
TMA_FARTHEST = 2**40
"""Bytes from one row to the next; no descriptor has more."""


class Need(IntEnum):
    """What the epilogue must do."""

    SCALE = 0
    BIAS = 1
    AZP_ROW = 2
    AZP_TOKEN = 3


_OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)
_OUTS = (DType.BF16, DType.F16)
_OPERAND_CODES = {dtype.torch_name: code for code, dtype in enumerate(_OPERANDS)}
_OUT_CODES = {dtype.torch_name: code for code, dtype in enumerate(_OUTS)}


@dataclass(frozen=True, kw_only=True)
class ProblemClass:
    """What the number of a class of calls says."""

    need: Need
    operand: DType
    out: DType
    scales: int
    """A number of `scales_code`."""


@dataclass(frozen=True, kw_only=True)
class ProblemCall:
    """One call: its class, its shape, and the bytes (16 at most) that data and row stride are multiples of."""

    problem: int
    m: int
    n: int
    k: int
    align_a: int
    align_b: int
    align_d: int


def scales_code(groups: ScaleGroups | None, mn_major: bool = False) -> int:
    """The number of a kind of scales: 0 per tensor or channel, then two for each kind of groups, A's scales M-major or not."""
    return 0 if groups is None else 1 + SCALE_GROUPS.index(groups) * 2 + (not mn_major)


def problem_code(need: Need, operand: str, out: str, scales: int = 0) -> int:
    """The number of a class of calls; dtypes as torch names them. Mirrors kernels/extension/problem.h."""
    return ((scales * len(Need) + need) * len(_OPERANDS) + _OPERAND_CODES[operand]) * len(_OUTS) + _OUT_CODES[out]


def class_of(problem: int) -> ProblemClass:
    """What `problem_code` made the number of."""
    rest, out = divmod(problem, len(_OUTS))
    rest, operand = divmod(rest, len(_OPERANDS))
    scales, need = divmod(rest, len(Need))
    return ProblemClass(need=Need(need), operand=_OPERANDS[operand], out=_OUTS[out], scales=scales)


def scales_codes_of(groups: ScaleGroups | None, layout: ScaleLayout) -> tuple[int, ...]:
    """The kinds of scales that a kernel reads: strided ones in both layouts."""
    if groups is None or layout is ScaleLayout.MN_MAJOR:
        return (scales_code(groups, mn_major=True),)
    return scales_code(groups, mn_major=True), scales_code(groups, mn_major=False)


def needs_of(predicate: Predicate) -> tuple[Need, ...]:
    """The needs that a kernel serves."""
    by_azp = {
        "none": (Need.SCALE, Need.BIAS) if predicate.bias else (Need.SCALE,),
        "row": (Need.AZP_ROW,),
        "token": (Need.AZP_TOKEN,),
    }
    return tuple(need for azp in predicate.azp for need in by_azp[azp])


def problems_of(predicate: Predicate) -> tuple[int, ...]:
    """The classes of calls that a kernel serves."""
    operand, out = predicate.a_dtype.torch_name, predicate.out_dtype.torch_name
    kinds = scales_codes_of(predicate.scale_groups, predicate.scale_layout)
    return tuple(problem_code(need, operand, out, scales) for scales in kinds for need in needs_of(predicate))


def describe_problem(problem: int) -> str:
    """A class of calls in words."""
    told = class_of(problem)
    words = {
        Need.SCALE: "no bias",
        Need.BIAS: "a bias",
        Need.AZP_ROW: "zero points per tensor",
        Need.AZP_TOKEN: "zero points per token",
    }
    return f"{told.operand} x {told.operand} to {told.out} with {_describe_scales(told.scales)}{words[told.need]}"


def _describe_scales(scales: int) -> str:
    if scales == 0:
        return ""
    groups = SCALE_GROUPS[(scales - 1) // 2]
    of_b = f"{groups.size} x {groups.size}" if groups.b_scale is ScaleGranularity.BLOCK else f"1 x {groups.size}"
    layout = "by their strides" if (scales - 1) % 2 else "M-major at multiples of 16 bytes"
    return f"scales of 1 x {groups.size} and {of_b}, a's {layout}, and "


def problem_of_call(op: OpSchema, call: Call) -> ProblemCall:
    """The problem of a call that has passed the checks."""
    out, a, b = call["out"], call["a"], call["b"]
    assert out is not None and a is not None and b is not None
    (m, k), n = a.shape, b.shape[1]
    lda = _round_up(k, 16) if m == 1 else a.strides[0]
    ldb = _round_up(k, 16) if n == 1 else b.strides[1]
    ldd = _round_up(n, 8) if m == 1 else out.strides[0]
    if op is SCALED_MM_AZP:
        need = Need.AZP_ROW if call["azp"] is None else Need.AZP_TOKEN
    else:
        need = Need.SCALE if call["bias"] is None else Need.BIAS
    groups = groups_of_call(call)
    a_scales, b_scales = call["a_scales"], call["b_scales"]
    assert a_scales is not None and b_scales is not None
    scales = scales_code(groups, mn_major=groups is not None and mn_major(a_scales, b_scales))
    return ProblemCall(
        problem=problem_code(need, a.dtype, out.dtype, scales),
        m=m,
        n=n,
        k=k,
        align_a=_alignment(a, lda, k),
        align_b=_alignment(b, ldb, k),
        align_d=_alignment(out, ldd | n, n),  # a TMA store ends at a multiple of 16 bytes, not at n
    )


def _alignment(operand: Operand, row_stride: int, columns: int) -> int:
    if row_stride < columns or row_stride >= TMA_FARTHEST // operand.element_bytes:
        row_stride = 1  # TMA takes no rows that overlap (expanded tensors), nor such that are too far apart
    bits = operand.data | (row_stride * operand.element_bytes) | TMA_BYTES
    return bits & -bits


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit
