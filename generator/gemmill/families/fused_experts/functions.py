"""The op as a function that allocates its result, and the size of its workspace."""

import math

import torch

from gemmill.families.fused_experts.config import GROUPS
from gemmill.families.fused_experts.packing import PACKING_NAMES
from gemmill.families.fused_experts.reference import GATE_UP, INTERLEAVED, UP_GATE
from gemmill.families.fused_experts.workspace import most_bytes
from gemmill.formats.ue8m0_scales import Scales, as_float32
from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import check_call, size

__all__ = ["fused_experts", "fused_experts_workspace"]

_FUSED_EXPERTS = overload("fused_experts")
_FUSED_FP4_EXPERTS = overload("fused_fp4_experts")
_FORMATS = {name: i for i, name in enumerate(PACKING_NAMES)}
_ROUNDED = "nvfp4_e4m3"
"""Weights that lose bits as they fold."""
_ORDERS = {"gate_up": GATE_UP, "up_gate": UP_GATE, "interleaved": INTERLEAVED}


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scales: torch.Tensor | None,
    w2_scales: torch.Tensor | None,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    activation: str = "silu",
    *,
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    order: str = "gate_up",
    weight_on_input: bool = False,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    adds: bool = False,
    workspace: torch.Tensor | None = None,
    check: bool = False,
    format: str | None = None,
    rounded: bool = False,
) -> torch.Tensor:
    """out[t] = sum over a token's experts e of weight W2[e] (activation(gate) up), gate and up being rows of W13[e] x[t].

    `x` is [M, K], bfloat16 or float16. `w13` is [E, 2 I, K] and `w2` is [E, K, I], row-major, as in checkpoints. Weights are
    float8_e4m3fn with float32 scales, or x's dtype without scales. K and I are multiples of 16; with scales of blocks, I is
    whole blocks. `order` says how rows of w13 have gates and ups: "gate_up", "up_gate" or "interleaved". `w13_bias` is
    [E, 2 I] and `w2_bias` is [E, K], in x's dtype.

    Scales of rows: `w13_scales` are [E, 2 I] or [E], and `w2_scales` are [E, K] or [E]. A row of activations then has
    one scale. Scales of blocks of g x g, with g = 128 or 32: they are [E, ceil(2 I / g), ceil(K / g)] and [E, ceil(K /
    g), I / g]. They may be ue8m0 bytes or int32 words too, as grouped_mm has them; torch makes them float32 at each
    call. Each g elements of a row of activations then have one scale. gemmill.families.fused_experts.reference
    defines the codes.

    `topk_ids` is int32 or int64 [M, topk], `topk_weights` float32 [M, topk]. `expert_map` is int32, one number for each
    expert: the index of its weights, or -1 for none. Without a map expert e has weights e. An id that names no expert
    counts as none. `weight_on_input` multiplies gates and ups by the router's weight, instead of the results of w2.

    `out` is [M, K] in x's dtype. With `adds` the op adds the result to it; else it overwrites it, or makes it.
    `workspace` is uint8, of as many bytes as fused_experts_workspace says. Its bytes may be anything. Without it
    torch's allocator provides them. Sums have one order: the same call gives the same bits.

    `format` is that of weights from gemmill.quantize.prepack_gated_experts, which have its name. It is "nvfp4" or
    "mxfp4", or for 2:4 sparse weights "nvfp4_2to4", or "nvfp4_2to4_8" where 8 columns share a scale. "mxfp4_e4m3" and
    "nvfp4_e4m3" stand for weights folded into e4m3: then a row of activations has one scale. nvfp4 loses bits there, so
    it wants `rounded`. w13 and w2 are uint8 blocks. `w13_scales` [E, 2 I] and `w2_scales` [E, K] are their bases. `x`
    is bfloat16, and `order` is "interleaved". Gates and ups alternate in w13_bias, too.

    Raises RuntimeError with one sentence where the arguments do not fit. Raises ValueError for another order or format,
    for `adds` without `out`, and for `rounded` where nothing is, or the reverse. `check` reads ids and map, and waits
    for the device.
    """
    if order not in _ORDERS:
        raise ValueError(f"order is {order!r}, expected 'gate_up', 'up_gate' or 'interleaved'")
    if adds and out is None:
        raise ValueError("adds is True and out is None: give the tensor that the result is added to")
    if rounded != (format == _ROUNDED):
        raise ValueError(
            f"rounded is {rounded} and format is {format!r}: rounded=True says that {_ROUNDED!r} may lose bits of weights, and goes with "
            "no other format"
        )
    out = torch.empty_like(x) if out is None else out
    if format is not None:
        _check_format(format, w13_scales, w2_scales)
    elif w13_scales is not None and w2_scales is not None:
        w13_scales, w2_scales = _as_float32(w13, w2, w13_scales, w2_scales, check=check)
    given = (
        out, x, w13, w2, w13_scales, w2_scales, topk_ids, topk_weights, activation, alpha, limit, beta,
        *(() if format is None else (_FORMATS[format],)),
        _ORDERS[order], weight_on_input, adds, w13_bias, w2_bias, expert_map, workspace,
    )  # fmt: skip
    if check:
        check_call("fused_experts" if format is None else "fused_fp4_experts", given)
        _check_ids(topk_ids, expert_map, w13.shape[0])
    (_FUSED_EXPERTS if format is None else _FUSED_FP4_EXPERTS)(*given)
    return out


def _as_float32(
    w13: torch.Tensor, w2: torch.Tensor, w13_scales: torch.Tensor, w2_scales: torch.Tensor, *, check: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of both weights in float32, where they are ue8m0."""
    if w13_scales.dtype == w2_scales.dtype == torch.float32:
        return w13_scales, w2_scales
    first, second = (
        Scales(name=name, values=scales, along_k=-1, rows=size(of, -2), k=size(of, -1))
        for name, scales, of in (("w13_scales", w13_scales, w13), ("w2_scales", w2_scales, w2))
    )
    return as_float32("fused_experts", first, second, GROUPS, check=check)


def _check_format(format: str, w13_scales: torch.Tensor | None, w2_scales: torch.Tensor | None) -> None:
    """Raise ValueError for another format, and RuntimeError where packed weights come without bases."""
    if format not in _FORMATS:
        *names, last = map(repr, _FORMATS)
        raise ValueError(
            f"format is {format!r}, expected {', '.join(names)} or {last}, or None for weights that are not packed"
        )
    for name, bases in (("w13_scales", w13_scales), ("w2_scales", w2_scales)):
        if bases is None:
            raise RuntimeError(f"fused_experts: format is {format!r} and {name} is None: packed weights have bases")


def _check_ids(topk_ids: torch.Tensor, expert_map: torch.Tensor | None, weights: int) -> None:
    """Raise RuntimeError with the first id or entry of the map that is out of bounds; -1 stands for none."""
    experts = weights if expert_map is None else expert_map.numel()
    for name, values, end in (("topk_ids", topk_ids, experts), ("expert_map", expert_map, weights)):
        for i, value in enumerate([] if values is None else values.reshape(-1).tolist()):
            if not -1 <= value < end:
                where = (
                    f"{name}[{i}]"
                    if name == "expert_map"
                    else f"{name}[{i // topk_ids.shape[1]}, {i % topk_ids.shape[1]}]"
                )
                raise RuntimeError(
                    f"fused_experts: {where} is {value}, expected -1 to {end - 1}: one of {end} experts, or -1 for none"
                )


def fused_experts_workspace(
    tokens: int, hidden: int, inner: int, topk: int, experts: int, *, coded: bool | None = None, packed: bool = False
) -> int:
    """Bytes that fused_experts needs at most for so many tokens, whatever kernel serves it.

    `hidden` is the length of a row of x, `inner` of half a row of the first product. `experts` counts those whose
    weights are here. `packed`: weights have packed codes of 4 bits. `coded`: activations become codes, as they do with
    float8_e4m3fn weights and with packed weights folded into e4m3. By default they do unless weights have packed codes.
    Fewer tokens need no more. Raises ValueError for a size below 0.
    """
    return most_bytes(tokens, hidden, inner, topk, experts, not packed if coded is None else coded, packed)
