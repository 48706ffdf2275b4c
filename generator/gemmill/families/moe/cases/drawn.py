"""Random calls, and what they must give."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gemmill.families.moe.accepts import GroupedAccepts
from gemmill.families.moe.cases.calls import wanted_of
from gemmill.families.moe.config import GROUP
from gemmill.families.moe.ops import GROUPED_MM
from gemmill.family.operand import TMA_BYTES
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import matrix
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime.ops import variants

_MOST_EXPERTS, _MOST_ROWS = 40, 200
_DTYPES = (*(torch.float8_e4m3fn,) * 6, torch.int8, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)
_SERVED = 0.85
"""Of all calls, those whose operands lie as TMA wants them."""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of one of the ops."""
    dtype = draw.one_of(_DTYPES)
    out_dtype = torch.bfloat16 if draw.chance(0.8) else torch.float16
    if is_plain := dtype.itemsize == 2:
        out_dtype = dtype
    is_masked = op != GROUPED_MM.name
    indexed = not is_masked and draw.chance(0.3)
    grouped = dtype is torch.float8_e4m3fn and draw.chance(0.5)
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
    groups = (-(-n // GROUP), -(-k // GROUP))
    told = counts if is_masked else list(accumulate(counts, initial=spare))
    slots = {
        "out": _aligned(draw, matrix(draw, out_dtype, rows, n, None, written=True), tidy),
        "a": _aligned(draw, matrix(draw, dtype, tokens, k, _codes(dtype, values)), tidy),
        "b": _dense(dtype, (experts, n, k), _codes(dtype, values)),
        "rows" if is_masked else "expert_offsets": replace(
            _dense(draw.one_of(_INTEGERS), (len(told),), None), values=tuple(told)
        ),
    }
    if not is_plain:
        slots["a_scales"] = _dense(torch.float32, (tokens, groups[1] if grouped else 1), scales)
        slots["b_scales"] = _dense(torch.float32, (experts, *groups) if grouped else (experts, n), scales)
    if indexed:
        ids = tuple(draw.below(tokens + 2) - 1 for _ in range(rows))
        slots["token_ids"] = replace(_dense(draw.one_of(_INTEGERS), (rows,), None), values=ids)
    if is_masked:
        for name in ("out", "a", "a_scales")[: 2 if is_plain else 3]:
            slots[name] = _in_slots(draw, slots[name], experts, slot)
    if draw.chance(0.2):
        mapped = tuple(draw.shuffled([e if draw.chance(0.8) else -1 for e in range(experts)]))
        slots["expert_map"] = replace(_dense(torch.int32, (experts,), None), values=mapped)
    return LegalCall(
        op=op,
        slots=slots,
        plain={"expected_rows": draw.below(64)} if is_masked else {},
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact else WITHIN,
    )


def _aligned(draw: Draw, x: Slot, tidy: bool) -> Slot:
    """A matrix with rows at multiples of 16 bytes, apart or not, if `tidy`."""
    if not tidy:
        return x
    stride = x.columns + draw.one_of((0, 0, 16, 48))
    between = draw.below(1 << 40) if x.rows == 1 and draw.chance(0.5) else stride  # of one row it means nothing
    return replace(x, strides=(between, 1), row_stride=stride, column_stride=1, shift=draw.one_of((0, 0, 16)))


def _codes(dtype: torch.dtype, values: str) -> str:
    return "codes" if dtype is torch.int8 and values != "integers" else values


def _dense(dtype: torch.dtype, shape: tuple[int, ...], values: str | None) -> Slot:
    columns = shape[-1]
    rows = torch.Size(shape[:-1]).numel()
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=tuple(torch.empty(shape, device="meta").stride()),
        rows=rows,
        columns=columns,
        row_stride=columns,
        column_stride=1,
        values=values,
        reference_shape=shape,
    )


def _in_slots(draw: Draw, x: Slot, experts: int, slot: int) -> Slot:
    shape = (experts, slot, x.columns)
    between = (
        draw.below(1 << 40) if experts == 1 and draw.chance(0.3) else slot * x.row_stride
    )  # of one expert it means nothing
    return replace(x, shape=shape, strides=(between, x.row_stride, x.column_stride), reference_shape=shape)


class GroupedJudge:
    """What a call must give, by the reference of operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._call = memory, call
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots}
        absent = dict.fromkeys(("a_scales", "b_scales", "expert_map", "token_ids"))
        whole = {**absent, "expected_rows": 0, **given, **call.plain}
        exactly = call.judged == EXACT or call.slots["a"].dtype is torch.int8
        self._wanted = wanted_of(call.op, whole, given["out"], exactly=exactly, promoted=False)

    def wrong(self) -> Tensor:
        """How many elements are, on the device, without waiting for it."""
        return self._wanted.apart(self._result()).sum()

    def report(self) -> str:
        """What is wrong, in words; nothing if nothing is."""
        return self._wanted.compare(self._result()).report

    def _result(self) -> Tensor:
        out = self._memory.dense("out")
        return out.reshape(-1, out.shape[-1])


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of these types and scales that takes such operands."""
    name = str(call.slots["a"].dtype).removeprefix("torch."), str(call.slots["out"].dtype).removeprefix("torch.")
    is_grouped = "b_scales" in call.slots and call.slots["b_scales"].shape[1:] != (call.slots["b"].shape[1],)
    aligned = all(_is_aligned(call.slots[role]) for role in ("a", "b", "out"))
    known = [
        entry.predicate for entry in variants(op=call.op) if aligned or not isinstance(entry.predicate, GroupedAccepts)
    ]
    return not any(
        (x.dtype.torch_name, x.out_dtype.torch_name, bool(x.group_size)) == (*name, is_grouped)
        and ("token_ids" in call.slots) in x.gathers
        for x in known
    )


def _is_aligned(x: Slot) -> bool:
    size = x.dtype.itemsize
    ends = x.columns if x.written else 0
    apart = x.rows > 1 and (x.row_stride < x.columns or x.row_stride * size % TMA_BYTES)
    return not apart and (x.shift * size) % TMA_BYTES == 0 and (x.columns * size | ends * size) % TMA_BYTES == 0
