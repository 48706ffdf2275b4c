"""Random calls of fused experts with packed weights."""

from dataclasses import replace

import torch

from gemmill.families.fused_experts.cases.calls import NEUTRAL, OF_SWIGLU
from gemmill.families.fused_experts.cases.slots import dense, rows
from gemmill.families.fused_experts.packing import PACKINGS
from gemmill.families.fused_experts.reference import INTERLEAVED
from gemmill.families.fused_experts.workspace import most_bytes
from gemmill.numerics.call import WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.vocab.activation import Activation

_MOST_WEIGHTS, _MOST_TOKENS, _MOST_TOPK, _MOST_COLUMNS = 12, 80, 6, 640
_INTEGERS = (torch.int32, torch.int64)
_VALUES = {
    "nvfp4": "nvfp4_blocks",
    "mxfp4": "mxfp4_blocks",
    "nvfp4_2to4": "sparse_blocks",
    "nvfp4_2to4_8": "sparse_blocks",
    "mxfp4_e4m3": "mxfp4_folded",
    "nvfp4_e4m3": "nvfp4_folded",
}
"""Pools of bytes for random blocks, by packing: each byte is a scale, and codes and places."""


def drawn_packed(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of the op. Its weights are random bytes of codes and scales, which nothing packed."""
    packing, half = draw.one_of(PACKINGS), torch.bfloat16
    step, values = packing.multiple, _VALUES[str(packing)]
    weights, tokens, topk = 1 + draw.log_uniform(_MOST_WEIGHTS), draw.size(_MOST_TOKENS), 1 + draw.below(_MOST_TOPK)
    hidden, inner = (step * (1 + draw.log_uniform(_MOST_COLUMNS // step)) for _ in range(2))
    while 2 * inner * hidden * weights > limits.elements and weights > 1:
        weights //= 2
    if 2 * inner * hidden * weights > limits.elements:
        hidden, inner = step, step
    tokens = min(tokens, limits.elements // (hidden + inner))
    mapped = None
    if draw.chance(0.3):
        mapped = tuple(draw.below(weights + 1) - 1 for _ in range(max(weights + draw.below(9), topk)))
    topk = topk if mapped else min(topk, weights)
    experts = len(mapped) if mapped else weights
    ids = tuple(draw.below(experts + 2) - 1 for _ in range(tokens * topk))
    slots = {
        "out": rows(draw, half, tokens, hidden, "normal", written=True),
        "x": rows(draw, half, tokens, hidden, "normal"),
        "w13": dense(torch.uint8, packing.blocks_shape(weights, 2 * inner, hidden), values),
        "w2": dense(torch.uint8, packing.blocks_shape(weights, hidden, inner), values),
        "w13_scales": dense(torch.float32, (weights, 2 * inner), "scales"),
        "w2_scales": dense(torch.float32, (weights, hidden), "scales"),
        "topk_ids": replace(dense(draw.one_of(_INTEGERS), (tokens, topk), None), values=ids),
        "topk_weights": dense(torch.float32, (tokens, topk), "bounds"),
    }
    if draw.chance(0.2):
        slots |= {
            "w13_bias": dense(half, (weights, 2 * inner), "normal"),
            "w2_bias": dense(half, (weights, hidden), "normal"),
        }
    if mapped:
        slots["expert_map"] = replace(dense(torch.int32, (experts,), None), values=mapped)
    if draw.chance(0.3):
        bytes_ = most_bytes(tokens, hidden, inner, topk, weights, coded=packing.is_coded, packed=True)
        slots["workspace"] = replace(dense(torch.uint8, (bytes_,), None), written=True)
    activation = draw.one_of(tuple(Activation))
    alpha, limit, beta = OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL
    plain = {
        "activation": activation.spelled,
        "alpha": alpha,
        "limit": limit,
        "beta": beta,
        "format": PACKINGS.index(packing),
    }
    plain |= {"order": INTERLEAVED, "weight_on_input": draw.chance(0.3), "adds": draw.chance(0.2)}
    return LegalCall(
        op=op,
        slots=slots,
        plain=plain,
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=WITHIN,
    )
