"""Random calls, and their expected results."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.fused_experts.cases.calls import NEUTRAL, OF_SWIGLU, wanted_of
from gemmill.families.fused_experts.cases.packed_drawn import drawn_packed
from gemmill.families.fused_experts.cases.slots import dense, rows
from gemmill.families.fused_experts.config import GROUPS
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.packing import PACKING_NAMES
from gemmill.families.fused_experts.workspace import most_bytes
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory
from gemmill.runtime.ops import variants
from gemmill.vocab.activation import Activation

_MOST_WEIGHTS, _MOST_TOKENS, _MOST_TOPK = 24, 80, 10
_E4M3 = torch.float8_e4m3fn
_MADE = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)
_OPTIONAL = ("w13_scales", "w2_scales", "w13_bias", "w2_bias", "expert_map", "workspace")


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of one of the ops."""
    return drawn_packed(op, draw, limits) if op == FUSED_FP4_EXPERTS.name else _drawn(op, draw, limits)


def _drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call with unpacked weights."""
    half, coded = draw.one_of(_MADE), draw.chance(0.75)
    group = draw.one_of(GROUPS) if coded and draw.chance(0.5) else 0
    step = group or 16
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
        "out": rows(draw, half, tokens, hidden, "normal", written=True),
        "x": rows(draw, half, tokens, hidden, values),
        "w13": dense(kind, (weights, 2 * inner, hidden), values),
        "w2": dense(kind, (weights, hidden, inner), values),
        "topk_ids": replace(dense(draw.one_of(_INTEGERS), (tokens, topk), None), values=ids),
        "topk_weights": dense(torch.float32, (tokens, topk), "bounds"),
    }
    if coded:
        shapes = _scale_shapes(weights, hidden, inner, group=group, single=draw.chance(0.2))
        slots |= {name: dense(torch.float32, shape, scales) for name, shape in shapes.items()}
    if draw.chance(0.2):
        slots |= {
            "w13_bias": dense(half, (weights, 2 * inner), values),
            "w2_bias": dense(half, (weights, hidden), values),
        }
    if mapped:
        slots["expert_map"] = replace(dense(torch.int32, (experts,), None), values=mapped)
    if draw.chance(0.3):
        bytes_ = most_bytes(tokens, hidden, inner, topk, weights, coded)
        slots["workspace"] = replace(dense(torch.uint8, (bytes_,), None), written=True)
    alpha, limit, beta = OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL
    plain = {"activation": activation.spelled, "alpha": alpha, "limit": limit, "beta": beta}
    plain |= {"order": draw.below(2 if group else 3), "weight_on_input": draw.chance(0.3), "adds": draw.chance(0.2)}
    return LegalCall(
        op=op,
        slots=slots,
        plain=plain,
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=WITHIN,
    )


def _scale_shapes(weights: int, hidden: int, inner: int, *, group: int, single: bool) -> dict[str, tuple[int, ...]]:
    if group:
        rows, columns, inner_columns = (-(-size // group) for size in (2 * inner, hidden, inner))
        return {"w13_scales": (weights, rows, columns), "w2_scales": (weights, columns, inner_columns)}
    if single:
        return {"w13_scales": (weights,), "w2_scales": (weights,)}
    return {"w13_scales": (weights, 2 * inner), "w2_scales": (weights, hidden, 1)}


class ExpertsJudge:
    """The expected results of a call: the reference's for operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory = memory
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots}
        self._wanted = wanted_of(dict.fromkeys(_OPTIONAL) | given | dict(call.plain), exactly=call.judged == EXACT)

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        return self._wanted.apart(self._memory.dense("out")).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        return self._wanted.compare(self._memory.dense("out")).report


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of these types and scales."""
    if call.op == FUSED_FP4_EXPERTS.name:
        return PACKING_NAMES[int(call.plain["format"])] not in {str(x.config.packing) for x in variants(op=call.op)}
    name, half = (str(call.slots[role].dtype).removeprefix("torch.") for role in ("w13", "x"))
    scales, (rows, columns) = call.slots.get("w13_scales"), call.slots["w13"].shape[1:]
    group = next((g for g in GROUPS if scales is not None and scales.shape[1:] == (-(-rows // g), -(-columns // g))), 0)
    known = [entry.config for entry in variants(op=call.op)]
    return not any((x.dtype.torch_name, x.out_dtype.torch_name, x.group_size) == (name, half, group) for x in known)
