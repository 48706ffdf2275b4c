"""Classes of calls: all features of a GEMM's call except for its sizes, as a number. Mirrors
kernels/scaled_mm/classes.h.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from gemmill.families.scaled_mm.accepts import Predicate
from gemmill.families.scaled_mm.own import class_of_epilogue
from gemmill.vocab import SCALE_GROUPS, DType, ScaleGroups, ScaleLayout


class Need(IntEnum):
    """A feature that the epilogue must have."""

    SCALE = 0
    BIAS = 1
    AZP_ROW = 2
    AZP_TOKEN = 3


OWN_CLASSES = 4096
"""Numbers of classes for each user's epilogue. The part below it says operand and result. Mirrored by classes.h."""
_OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)
_OUTS = (DType.BF16, DType.F16)
_TO_CODES = OWN_CLASSES // 2
"""The number to add where results are codes of e4m3. Only a user's epilogue ends in them. Mirrored by classes.h."""
_OPERAND_CODES = {dtype.torch_name: code for code, dtype in enumerate(_OPERANDS)}
_OUT_CODES = {dtype.torch_name: code for code, dtype in enumerate(_OUTS)}


@dataclass(frozen=True, kw_only=True)
class CallClass:
    """The parts of the number of a class of calls."""

    need: Need
    operand: DType
    out: DType
    scales: int
    """The kind of scales, as `scales_code` numbers it."""
    own: int = 0
    """The number of a user's epilogue, or 0."""


def scales_code(groups: ScaleGroups | None, mn_major: bool = False) -> int:
    """The number of a kind of scales: 0 per tensor or channel, then two for each kind of groups.

    The second of these two is for M-major scales of A.
    """
    return 0 if groups is None else 1 + SCALE_GROUPS.index(groups) * 2 + (not mn_major)


def class_code(need: Need, operand: str, out: str, scales: int = 0, own: int = 0) -> int:
    """The number of a class of calls; dtypes as torch names them. Mirrors kernels/scaled_mm/classes.h."""
    to_codes = out == DType.E4M3.torch_name
    below = ((scales * len(Need) + need) * len(_OPERANDS) + _OPERAND_CODES[operand]) * len(_OUTS)
    return own * OWN_CLASSES + (_TO_CODES if to_codes else 0) + below + (0 if to_codes else _OUT_CODES[out])


def class_of(number: int) -> CallClass:
    """The class of calls that `class_code` numbered so."""
    own, below = divmod(number, OWN_CLASSES)
    to_codes, below = divmod(below, _TO_CODES)
    rest, out = divmod(below, len(_OUTS))
    rest, operand = divmod(rest, len(_OPERANDS))
    scales, need = divmod(rest, len(Need))
    result = DType.E4M3 if to_codes else _OUTS[out]
    return CallClass(need=Need(need), operand=_OPERANDS[operand], out=result, scales=scales, own=own)


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


def classes_of(predicate: Predicate) -> tuple[int, ...]:
    """The classes of calls that a kernel serves."""
    operand, out = predicate.a_dtype.torch_name, predicate.out_dtype.torch_name
    if predicate.epilogue is not None:
        return (class_code(Need.SCALE, operand, out, own=class_of_epilogue(predicate.epilogue)),)
    kinds = scales_codes_of(predicate.scale_groups, predicate.scale_layout)
    return tuple(class_code(need, operand, out, scales) for scales in kinds for need in needs_of(predicate))


@cache
def describe_class(number: int) -> str:
    """A class of calls in words."""
    told = class_of(number)
    if told.own:
        return f"{told.operand} x {told.operand} to {told.out} with epilogue {told.own:010x}"
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
    layout = "by their strides" if (scales - 1) % 2 else "M-major at multiples of 16 bytes"
    return f"scales of 1 x {groups.size} and {groups.of_b}, a's {layout}, and "
