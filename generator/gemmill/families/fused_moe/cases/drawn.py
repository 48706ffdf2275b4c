"""Random calls, and what they must give."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.fused_moe.cases.calls import NEUTRAL, OF_SWIGLU, wanted_of
from gemmill.families.fused_moe.config import GROUP
from gemmill.families.fused_moe.workspace import most_bytes
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime.ops import variants
from gemmill.vocab.activation import Activation

_MOST_WEIGHTS, _MOST_TOKENS, _MOST_TOPK = 24, 80, 10
_E4M3 = torch.float8_e4m3fn
_MADE = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)
_OPTIONAL = ("w13_scales", "w2_scales", "w13_bias", "w2_bias", "expert_map", "workspace")


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of the op."""
    half, coded = draw.one_of(_MADE), draw.chance(0.75)
    blocks = coded and draw.chance(0.5)
    step = GROUP if blocks else 16
    weights, topk, tokens = 1 + draw.log_uniform(_MOST_WEIGHTS), 1 + draw.below(_MOST_TOPK), draw.size(_MOST_TOKENS)
    hidden, inner = 16 * (1 + draw.log_uniform(40)), step * (1 + draw.log_uniform(512 // step))
    while 2 * inner * hidden * weights > limits.elements and weights > 1:
        weights //= 2
    if 2 * inner * hidden * weights > limits.elements:
        hidden, inner = 16 * (1 + draw.below(2)), step
    tokens = min(tokens, limits.elements // (hidden + inner))
    mapped = (
        tuple(draw.below(weights + 1) - 1 for _ in range(max(weights + draw.below(9), topk)))
        if draw.chance(0.3)
        else None
    )
    topk = topk if mapped else min(topk, weights)
    experts, exact = len(mapped) if mapped else weights, coded and draw.chance(0.5)
    values, scales = ("integers", "powers") if exact else ("normal", "scales")
    kind = _E4M3 if coded else half
    ids = tuple(draw.below(experts + 2) - 1 for _ in range(tokens * topk))
    activation = draw.one_of(tuple(Activation))
    slots = {
        "out": _rows(draw, half, tokens, hidden, "normal", written=True),
        "x": _rows(draw, half, tokens, hidden, values),
        "w13": _dense(kind, (weights, 2 * inner, hidden), values),
        "w2": _dense(kind, (weights, hidden, inner), values),
        "topk_ids": replace(_dense(draw.one_of(_INTEGERS), (tokens, topk), None), values=ids),
        "topk_weights": _dense(torch.float32, (tokens, topk), "bounds"),
    }
    if coded:
        shapes = _scale_shapes(weights, hidden, inner, blocks=blocks, single=draw.chance(0.2))
        slots |= {name: _dense(torch.float32, shape, scales) for name, shape in shapes.items()}
    if draw.chance(0.2):
        slots |= {
            "w13_bias": _dense(half, (weights, 2 * inner), values),
            "w2_bias": _dense(half, (weights, hidden), values),
        }
    if mapped:
        slots["expert_map"] = replace(_dense(torch.int32, (experts,), None), values=mapped)
    if draw.chance(0.3):
        bytes_ = most_bytes(tokens, hidden, inner, topk, weights, coded)
        slots["workspace"] = replace(_dense(torch.uint8, (bytes_,), None), written=True)
    alpha, limit, beta = OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL
    plain = {"activation": activation.spelled, "alpha": alpha, "limit": limit, "beta": beta}
    plain |= {"order": draw.below(2 if blocks else 3), "weight_on_input": draw.chance(0.3), "adds": draw.chance(0.2)}
    return LegalCall(
        op=op,
        slots=slots,
        plain=plain,
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=WITHIN,
    )


def _scale_shapes(weights: int, hidden: int, inner: int, *, blocks: bool, single: bool) -> dict[str, tuple[int, ...]]:
    rows, columns, inner_columns = (-(-size // GROUP) for size in (2 * inner, hidden, inner))
    if blocks:
        return {"w13_scales": (weights, rows, columns), "w2_scales": (weights, columns, inner_columns)}
    if single:
        return {"w13_scales": (weights,), "w2_scales": (weights,)}
    return {"w13_scales": (weights, 2 * inner), "w2_scales": (weights, hidden, 1)}


def _rows(draw: Draw, dtype: torch.dtype, rows: int, columns: int, values: str, *, written: bool = False) -> Slot:
    """A matrix whose rows lie at multiples of 16 bytes, apart or not."""
    stride = columns + draw.one_of((0, 0, 16, 48))
    between = draw.below(1 << 40) if rows == 1 and draw.chance(0.5) else stride  # of one row it means nothing
    slot = Slot.matrix(
        dtype, (rows, columns), (between, 1), values=values, written=written, shift=draw.one_of((0, 0, 16))
    )
    return replace(slot, row_stride=stride)


def _dense(dtype: torch.dtype, shape: tuple[int, ...], values: str | None) -> Slot:
    rows = math.prod(shape[:-1])
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=tuple(torch.empty(shape, device="meta").stride()),
        rows=rows,
        columns=shape[-1],
        row_stride=shape[-1],
        column_stride=1,
        values=values,
        reference_shape=shape,
    )


class ExpertsJudge:
    """What a call must give, by the reference of operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory = memory
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots}
        self._wanted = wanted_of(dict.fromkeys(_OPTIONAL) | given | dict(call.plain), exactly=call.judged == EXACT)

    def wrong(self) -> Tensor:
        """How many elements are, on the device, without waiting for it."""
        return self._wanted.apart(self._memory.dense("out")).sum()

    def report(self) -> str:
        """What is wrong, in words; nothing if nothing is."""
        return self._wanted.compare(self._memory.dense("out")).report


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of these types and scales."""
    name, half = (str(call.slots[role].dtype).removeprefix("torch.") for role in ("w13", "x"))
    scales = call.slots.get("w13_scales")
    grouped = scales is not None and len(scales.shape) == 3
    known = [entry.predicate for entry in variants(op=call.op)]
    return not any(
        (x.dtype.torch_name, x.out_dtype.torch_name, bool(x.group_size)) == (name, half, grouped) for x in known
    )
