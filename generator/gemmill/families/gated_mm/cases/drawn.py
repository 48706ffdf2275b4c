"""Random calls of the gated GEMMs, and their expected results."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.cases.calls import NEUTRAL, CallSpec, group_shapes, report_of, wrong_of
from gemmill.families.gated_mm.cases.checked import OF_SWIGLU
from gemmill.families.gated_mm.cases.experts_drawn import (
    DTYPES,
    ExpertJudge,
    drawn_experts,
    is_lacking_experts,
    values_of,
)
from gemmill.families.gated_mm.classes import RESULTS
from gemmill.families.gated_mm.config import GROUP, Activation, Result, UnalignedGatedConfig
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.reference import KINDS, Groups
from gemmill.family.operand import TMA_BYTES
from gemmill.formats.layout import GATE_UP_ROWS
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import matrix, one_value, vector
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime.ops import variants

_TMA_ELEMENTS = 16
"""Elements that the rows of operands which TMA takes are multiples of."""
_SERVED = 0.85
"""The share of calls whose operands lie as TMA wants them."""
_IN_GROUPS = 0.3
"""The share of these whose operands have scales in groups. No kernel takes other calls with such scales."""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of one of the ops."""
    if op in EXPERT_NAMES:
        return drawn_experts(op, draw, limits)
    result, activation = draw.one_of(RESULTS), draw.one_of(tuple(Activation))
    dtype = draw.one_of(DTYPES)
    exact, tidy = draw.chance(0.6), draw.chance(_SERVED)
    step = GROUP if result is Result.GROUP else GATE_UP_ROWS // 2
    m, k = draw.size(300), 1 + draw.size(768)
    hidden = step * draw.log_uniform(max(512 // step, 1))
    while m * max(2 * hidden, k) > limits.elements or 2 * hidden * k > limits.elements:
        m, k = max(m // 2, 1), max(k // 2, 1)
        if k == 1:
            hidden = step
            break
    if tidy:
        k += -k % _TMA_ELEMENTS
    values, scales = values_of(dtype, exact=exact)
    slots = {
        "out": matrix(draw, result_dtype(result), m, hidden, None, written=True, tidy=tidy),
        "a": matrix(draw, dtype, m, k, values, tidy=tidy),
        "b": matrix(draw, dtype, k, 2 * hidden, values, transposed=True, tidy=tidy),
    }
    kind = drawn_groups(draw, hidden, k) if tidy and dtype is torch.float8_e4m3fn and draw.chance(_IN_GROUPS) else None
    if kind is not None:
        spec = CallSpec(m=m, hidden=hidden, k=k, result=result, group_size=kind.size, rows_scaled=kind.rows_scaled)
        for name, (rows, columns) in zip(("a_scales", "b_scales"), group_shapes(spec), strict=True):
            slots[name] = _matrix_of_scales(draw, rows, columns, scales)
    else:
        slots |= {"a_scales": _scales(draw, m, scales), "b_scales": _scales(draw, 2 * hidden, scales)}
    slots["b"] = replace(slots["b"], column_major=False)
    if result is Result.GROUP:
        slots["out_scales"] = _matrix_of_scales(draw, m, hidden // (kind.size if kind else GROUP), None)
    if result is Result.STATIC:
        slots["static_scale"] = one_value(draw, torch.float32, scales)
    alpha, limit, beta = OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL
    return LegalCall(
        op=op,
        slots=slots,
        plain={"activation": activation.spelled, "alpha": alpha, "limit": limit, "beta": beta},
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact else WITHIN,
    )


def drawn_groups(draw: Draw, hidden: int, k: int) -> Groups | None:
    """Groups of operands' scales, or None: blocks of gates and ups are whole, one group of a row is a scale of the row, and of one block
    of 32 x 32 scales have the shape of one of 128 x 128."""
    fitting = [
        kind
        for kind in KINDS
        if (
            k > kind.size
            if kind.rows_scaled
            else hidden % kind.size == 0 and (kind.size == GROUP or max(hidden, k) > kind.size)
        )
    ]
    return draw.one_of(fitting) if fitting else None


def _matrix_of_scales(draw: Draw, rows: int, columns: int, values: str | None) -> Slot:
    """The slot of a matrix of scales, row by row or column by column. Without `values` it is written."""
    by_column, written = draw.chance(0.5), values is None
    found = matrix(draw, torch.float32, rows, columns, values, written=written, transposed=by_column, tidy=True)
    return replace(found, column_major=False)


def result_dtype(result: Result) -> torch.dtype:
    """The dtype of a result in torch."""
    found: torch.dtype = getattr(torch, result.dtype.torch_name)
    return found


def _scales(draw: Draw, count: int, values: str) -> Slot:
    if draw.chance(0.2):
        return one_value(draw, torch.float32, values)
    return vector(draw, torch.float32, count, values, ((count,), (count, 1), (1, count)))


class GatedJudge:
    """The judge of one random call, by the reference's result for operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._exactly = memory, call.judged == EXACT
        read = {name: memory.dense(name, before) for name, slot in call.slots.items() if not slot.written}
        self._given: dict[str, Any] = {"static_scale": None} | read | dict(call.plain)
        self._written = [name for name, slot in call.slots.items() if slot.written]

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        return torch.stack([found.sum() for found in self._found()]).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        return report_of(self._found())

    def _found(self) -> list[Tensor]:
        written = {name: self._memory.dense(name) for name in self._written}
        return wrong_of(self._given, written, exactly=self._exactly)


def judge(call: LegalCall, memory: Memory, before: Tensor) -> GatedJudge | ExpertJudge:
    """The judge of a call of one of the ops."""
    if call.op in EXPERT_NAMES:
        return ExpertJudge(call, memory, before)
    return GatedJudge(call, memory, before)


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of this result and activation that takes such operands."""
    if call.op in EXPERT_NAMES:
        return is_lacking_experts(call)
    names = {activation.spelled: activation for activation in Activation}
    result = (
        Result.GROUP if "out_scales" in call.slots else Result.STATIC if "static_scale" in call.slots else Result.BF16
    )
    activation = names[call.plain["activation"]]
    aligned = all(_is_aligned(call.slots[role], by_columns=role == "b") for role in ("a", "b", "out"))
    kind = _groups_of(call)
    dtype = str(call.slots["a"].dtype).removeprefix("torch.")
    return not any(
        (x.operands.dtype.torch_name, bool(x.epilogue.result.group)) == (dtype, result is Result.GROUP)
        and (result is Result.GROUP or x.epilogue.result is result)
        and (x.group_size, x.rows_scaled) == ((kind.size, kind.rows_scaled) if kind else (0, False))
        and activation in x.epilogue.activations
        and (aligned or isinstance(x, UnalignedGatedConfig))
        for x in (entry.config for entry in variants(op=call.op))
    )


def _groups_of(call: LegalCall) -> Groups | None:
    of_b, b = call.slots["b_scales"], call.slots["b"]
    shape = of_b.rows, of_b.columns
    kinds = [kind for kind in KINDS if b.rows > kind.size or not kind.rows_scaled]
    return next((kind for kind in kinds if shape == kind.b_shape(b.columns, b.rows)), None)


def _is_aligned(x: Slot, *, by_columns: bool) -> bool:
    size = x.dtype.itemsize
    count, length, stride = (x.columns, x.rows, x.column_stride) if by_columns else (x.rows, x.columns, x.row_stride)
    ends = length * size if x.written else 0
    apart = count > 1 and (stride < length or stride * size % TMA_BYTES)
    return not apart and (x.shift * size) % TMA_BYTES == 0 and ends % TMA_BYTES == 0
