"""Random calls, and their expected results."""

from typing import Any

import torch
from torch import Tensor

from gemmill.families.grouped_mm.cases.calls import wanted_of
from gemmill.families.grouped_mm.cases.packed_drawn import drawn_packed
from gemmill.families.grouped_mm.config import SCALE_GROUPS, UnalignedGroupedConfig
from gemmill.families.grouped_mm.ops import GROUPED_MM
from gemmill.families.grouped_mm.packed_ops import FP4_NAMES
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.expert_slots import aligned, dense, first_poisoned, in_slots, is_aligned, routed
from gemmill.numerics.layouts import matrix
from gemmill.numerics.memory import Memory
from gemmill.runtime.ops import variants
from gemmill.vocab import ScaleGroups

_MOST_EXPERTS, _MOST_ROWS = 40, 200
_DTYPES = (*(torch.float8_e4m3fn,) * 6, torch.int8, torch.bfloat16, torch.float16)
_SERVED = 0.85
"""The share of all calls whose operands lie as TMA wants them."""
_ENDED = 0.3
"""The share of all calls with alpha or bias."""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of one of the ops."""
    return drawn_packed(op, draw, limits) if op in FP4_NAMES else _drawn(op, draw, limits)


def _drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call with unpacked weights."""
    dtype = draw.one_of(_DTYPES)
    out_dtype = torch.bfloat16 if draw.chance(0.8) else torch.float16
    if is_plain := dtype.itemsize == 2:
        out_dtype = dtype
    is_masked = op != GROUPED_MM.name
    indexed = not is_masked and draw.chance(0.3)
    kind = draw.one_of(SCALE_GROUPS) if dtype is torch.float8_e4m3fn and draw.chance(0.5) else None
    exact, tidy = draw.chance(0.6), draw.chance(_SERVED)
    experts = 1 + draw.log_uniform(_MOST_EXPERTS)
    n, k = 1 + draw.size(512), 1 + draw.size(1024)
    if tidy:
        n, k = 8 * -(-n // 8), 16 * -(-k // 16)
    while experts * n * k > limits.elements and experts > 1:
        experts //= 2
    counts = [
        0 if draw.chance(0.3) else draw.log_uniform(min(_MOST_ROWS, limits.elements // k)) for _ in range(experts)
    ]
    slot = max(*counts, 1, draw.below(64)) if is_masked else 0
    if draw.chance(0.02):
        slot, counts = 0, [0] * experts
    spare = draw.one_of((0, 0, 5))
    rows = experts * slot if is_masked else sum(counts) + 2 * spare
    tokens = 1 + draw.below(2 * rows + 2) if indexed else rows
    values, scales = ("integers", "powers") if exact else ("normal", "scales")
    a_scales: tuple[int, ...] = (tokens, 1)
    b_scales: tuple[int, ...] = (experts, n)
    if kind is not None:
        a_scales, b_scales = kind.a_shape(tokens, k), (experts, *kind.b_shape(n, k)[::-1])
    slots = {
        "out": aligned(draw, matrix(draw, out_dtype, rows, n, None, written=True), tidy),
        "a": aligned(draw, matrix(draw, dtype, tokens, k, _codes(dtype, values)), tidy),
        "b": dense(dtype, (experts, n, k), _codes(dtype, values)),
    } | routed(draw, counts, rows, tokens, spare=spare, masked=is_masked, indexed=indexed)
    if not is_plain:
        slots["a_scales"] = dense(torch.float32, a_scales, scales)
        slots["b_scales"] = dense(torch.float32, b_scales, scales)
    slots = first_poisoned(draw, slots, exact=exact)
    if draw.chance(_ENDED):
        both = draw.below(3)
        if both != 1:
            slots["alpha"] = dense(torch.float32, (experts,), scales)
        if both != 2:
            slots["bias"] = dense(out_dtype, (experts, n), values)
    if is_masked:
        for name in ("out", "a", "a_scales")[: 2 if is_plain else 3]:
            slots[name] = in_slots(draw, slots[name], experts, slot)
    return LegalCall(
        op=op,
        slots=slots,
        plain={"expected_rows": draw.below(64)} if is_masked else {},
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact else WITHIN,
    )


def _codes(dtype: torch.dtype, values: str) -> str:
    return "codes" if dtype is torch.int8 and values != "integers" else values


class GroupedJudge:
    """The expected results of a call, by the reference on operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._call = memory, call
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots}
        absent = dict.fromkeys(("a_scales", "b_scales", "alpha", "bias", "expert_map", "token_ids"))
        whole = {**absent, "expected_rows": 0, **given, **call.plain}
        exactly = call.judged == EXACT or call.slots["a"].dtype is torch.int8
        self._wanted = wanted_of(call.op, whole, given["out"], exactly=exactly, promoted=False)

    def wrong(self) -> Tensor:
        """How many elements are wrong: a count on the device, for which nobody waits."""
        return self._wanted.apart(self._result()).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        return self._wanted.compare(self._result()).report

    def _result(self) -> Tensor:
        out = self._memory.dense("out")
        return out.reshape(-1, out.shape[-1])


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of these dtypes and scales that takes such operands."""
    if call.op in FP4_NAMES:
        asked = str(call.slots["a"].dtype).removeprefix("torch."), call.plain["format"]
        packed = {(x.config.dtype.torch_name, str(x.config.format)) for x in variants(op=call.op)}
        return asked not in packed
    name = str(call.slots["a"].dtype).removeprefix("torch."), str(call.slots["out"].dtype).removeprefix("torch.")
    groups = _groups_of(call)
    ends = "alpha" in call.slots or "bias" in call.slots
    lies_well = all(is_aligned(call.slots[role]) for role in ("a", "b", "out"))
    return not any(
        (x.operand_dtype.torch_name, x.out_dtype.torch_name, x.scale_groups, x.biased) == (*name, groups, ends)
        and ("token_ids" in call.slots) in x.gathers
        and (lies_well or isinstance(x, UnalignedGroupedConfig))
        for x in (entry.config for entry in variants(op=call.op))
    )


def _groups_of(call: LegalCall) -> ScaleGroups | None:
    """The kind of a call's scales in groups."""
    n, k = call.slots["b"].shape[1:]
    of_expert = call.slots["b_scales"].shape[1:] if "b_scales" in call.slots else ()
    if len(of_expert) < 2:
        return None
    return next(groups for groups in SCALE_GROUPS if of_expert == groups.b_shape(n, k)[::-1])
