"""Random calls of rows that belong to experts, and their expected results."""

from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.cases.calls import NEUTRAL, report_of
from gemmill.families.gated_mm.cases.checked import OF_SWIGLU
from gemmill.families.gated_mm.cases.experts import wrong_of_experts
from gemmill.families.gated_mm.classes import RESULTS
from gemmill.families.gated_mm.config import GROUP, Activation, Result
from gemmill.families.gated_mm.expert_ops import GROUPED_MM_ACT_QUANT
from gemmill.formats.layout import GATE_UP_ROWS
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.expert_slots import aligned, dense, first_poisoned, in_slots, is_aligned, routed
from gemmill.numerics.layouts import matrix, one_value
from gemmill.numerics.memory import Memory
from gemmill.runtime.ops import variants

_MOST_EXPERTS, _MOST_ROWS = 40, 200
_SERVED = 0.9
"""The share of calls whose operands lie as TMA wants them. No kernel takes others."""
_SERVED_ACTIVATIONS = (*(Activation.SILU, Activation.SWIGLU) * 4, *Activation)


DTYPES = (*(torch.float8_e4m3fn,) * 3, torch.int8)
"""Types of operands: three calls in four are of e4m3."""


def values_of(dtype: torch.dtype, *, exact: bool) -> tuple[str, str]:
    """The kinds of values of operands and scales."""
    if exact:
        return "integers", "powers"
    return "codes" if dtype is torch.int8 else "normal", "scales"


def drawn_experts(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of one of the ops with experts."""
    result, activation = draw.one_of(RESULTS), draw.one_of(_SERVED_ACTIVATIONS)
    dtype, exact, tidy = draw.one_of(DTYPES), draw.chance(0.6), draw.chance(_SERVED)
    in_groups = dtype is torch.float8_e4m3fn and draw.chance(0.5)
    is_masked = op != GROUPED_MM_ACT_QUANT.name
    experts = 1 + draw.log_uniform(_MOST_EXPERTS)
    step = GROUP if in_groups or result is Result.GROUP else GATE_UP_ROWS // 2
    hidden, k = step * draw.log_uniform(max(384 // step, 1)), 1 + draw.size(768)
    if tidy:
        k = 16 * -(-k // 16)
    while experts * 2 * hidden * k > limits.elements and experts > 1:
        experts //= 2
    most = min(_MOST_ROWS, max(limits.elements // max(k, 2 * hidden), 1))
    counts = [0 if draw.chance(0.3) else draw.log_uniform(most) for _ in range(experts)]
    slot = max(*counts, 1, draw.below(64)) if is_masked else 0
    if draw.chance(0.02):
        slot, counts = 0, [0] * experts
    spare = draw.one_of((0, 0, 5))
    rows = experts * slot if is_masked else sum(counts) + 2 * spare
    indexed = not is_masked and not in_groups and draw.chance(0.3)
    tokens = 1 + draw.log_uniform(most) if indexed else rows
    values, scales = values_of(dtype, exact=exact)
    n, k_groups = 2 * hidden, -(-k // GROUP)
    out_dtype: torch.dtype = getattr(torch, result.dtype.torch_name)
    slots = {
        "out": aligned(draw, matrix(draw, out_dtype, rows, hidden, None, written=True), tidy),
        "a": aligned(draw, matrix(draw, dtype, tokens, k, values), tidy),
        "b": dense(dtype, (experts, n, k), values),
        "a_scales": dense(torch.float32, (tokens, k_groups if in_groups else 1), scales),
        "b_scales": dense(
            torch.float32, (experts, 2 * -(-hidden // GROUP), k_groups) if in_groups else (experts, n), scales
        ),
    } | routed(draw, counts, rows, tokens, spare=spare, masked=is_masked, indexed=indexed)
    slots = first_poisoned(draw, slots, exact=exact)
    shaped = ["out", "a", "a_scales"]
    if result is Result.GROUP:
        slots["out_scales"] = aligned(
            draw, matrix(draw, torch.float32, rows, hidden // GROUP, None, written=True), True
        )
        shaped.append("out_scales")
    if result is Result.STATIC:
        slots["static_scale"] = one_value(draw, torch.float32, scales)
    for name in shaped if is_masked else ():
        slots[name] = in_slots(draw, slots[name], experts, slot)
    alpha, limit, beta = OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL
    plain = {"activation": activation.spelled, "alpha": alpha, "limit": limit, "beta": beta}
    return LegalCall(
        op=op,
        slots=slots,
        plain=plain | ({"expected_rows": draw.below(64)} if is_masked else {}),
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact else WITHIN,
    )


class ExpertJudge:
    """The judge of one random call, by the reference's result for operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._call, self._exactly = memory, call, call.judged == EXACT
        given = {name: memory.dense(name, before) for name in call.slots}
        self._before = {name: given.pop(name) for name, slot in call.slots.items() if slot.written}
        absent = dict.fromkeys(("out_scales", "static_scale", "expert_map", "token_ids"))
        self._given: dict[str, Any] = {**absent, "expected_rows": 0, **given, **call.plain}

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        return torch.stack([found.sum() for found in self._found()]).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        return report_of(self._found())

    def _found(self) -> list[Tensor]:
        written = {name: self._memory.dense(name) for name in self._before}
        return wrong_of_experts(self._call.op, self._given, written, self._before, exactly=self._exactly)


def is_lacking_experts(call: LegalCall) -> bool:
    """Whether the build has no variant of this result, activation and kind of scales that takes such operands."""
    result = (
        Result.GROUP if "out_scales" in call.slots else Result.STATIC if "static_scale" in call.slots else Result.BF16
    )
    group_size = GROUP if len(call.slots["b_scales"].shape) == 3 else 0
    indexed = "token_ids" in call.slots
    dtype = str(call.slots["a"].dtype).removeprefix("torch.")
    known = [entry.config for entry in variants(op=call.op) if entry.config.operands.indexed == indexed]
    return not all(is_aligned(call.slots[role]) for role in ("a", "b", "out")) or not any(
        (x.operands.dtype.torch_name, x.epilogue.result, x.group_size) == (dtype, result, group_size)
        and call.plain["activation"] in _spelled(x.epilogue.activations)
        for x in known
    )


def _spelled(activations: tuple[Activation, ...]) -> list[str]:
    return [activation.spelled for activation in activations]
