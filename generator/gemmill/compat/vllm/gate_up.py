"""GEMM + SwiGLU + codes of a given scale in vLLM's compiled graphs: one op for a gate_up layer of FP8 and its SiLU.

The layer's product stands in a graph as an op of its own, `product`, followed by vLLM's SiLU with a given scale. The pass makes
one op of both, `product_silu_codes`. That op's first call packs the layer's weights, in place, in the order of the gated GEMMs.
From then on `product` puts its columns back, so that a reader outside the fused graphs has plain gates and ups, only slower. A
layer whose call a CUDA graph captured before stays plain: the captured kernels read plain weights.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized

import gemmill
from gemmill.compat import invariance
from gemmill.compat.linear import ROWS, Linear, refusal, take, unusable
from gemmill.compat.vllm import contest, fusion, quant
from gemmill.family import VLLM_PREFIX
from gemmill.formats.gate_up import pack_gate_up, packed_rows
from gemmill.formats.layout import GATE_UP_ROWS
from gemmill.runtime import served
from gemmill.runtime.schemas import NAMESPACE

QUANT = "silu_and_mul_quant"
"""vLLM's op of SiLU, gates times ups, and codes of a given scale."""
_FUSED = "scaled_mm_act_quant"
_COMPILED = "VLLM_COMPILE"
"""The mode of vLLM's in which its passes see graphs."""
_LARGEST_CODE = 448.0
"""Of e4m3."""
_LEAST = 0.95
"""No timed number of rows may take more than 1 / _LEAST of the two ops' time; in the mean the one op is no slower."""


@dataclass(frozen=True, kw_only=True)
class GateUp:
    """A gate_up layer of FP8 with SiLU and codes of a given scale behind it."""

    rows: ClassVar[tuple[int, ...]] = ROWS
    n: int
    """Gates and ups."""
    k: int
    channel: bool
    """Whether weights have a scale for each row; activations have one for all."""

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m rows, on torch's meta device."""

        def empty(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=kind, device="meta")

        codes = torch.float8_e4m3fn
        out, a, b = empty(m, self.n // 2, kind=codes), empty(m, self.k, kind=codes), empty(self.n, self.k, kind=codes)
        b_scales = empty(self.n if self.channel else 1)
        return _FUSED, out, None, a, b.t(), empty(1), b_scales, "silu", 1.0, math.inf, 0.0, empty(1)

    def __str__(self) -> str:
        return f"gate_up layer of N x K = {self.n} x {self.k}, FP8, with SiLU and codes of a given scale"


@dataclass(kw_only=True)
class Order:
    """The order of a layer's rows of weights."""

    layer: GateUp
    is_packed: bool = False
    is_kept: bool = False
    """Whether the order stays as it is."""


_orders: dict[int, Order] = {}
"""By the address of a layer's weights. A graph is of several layers and processes, so it cannot name a layer."""
_lock = Lock()
_worth: dict[GateUp, str | None] = {}
"""Why the two ops are left, by layers that are alike; None for one op."""


def order_of(known: Order | None, layer: Any, kind: Linear, *operands: Tensor) -> Order | None:
    """The order of a newly loaded layer, which has plain rows: that known from before a reload, else a new one.

    `operands` are b [K, N], a_scales of one value and b_scales; `kind` is the layer as its GEMM has it. A layer whose weights were
    packed gets these packed too, for captured graphs expect it. None where vLLM compiles no graph that would fuse the layer, where
    it is no gate_up layer of bf16 results without a bias, or the two ops are faster.
    """
    b, _, b_scales = operands
    if known is None:
        if not (_is_gate_up(layer, kind, b) and _fuses()):
            return None
        like = GateUp(n=kind.n, k=kind.k, channel=b_scales.numel() > 1)
        if refusal(like) is not None or _slower(like, kind, *operands) is not None:
            return None
        known = Order(layer=like)
    elif known.is_packed:
        _pack(b, b_scales)
    _orders[b.data_ptr()] = known
    return known


def _is_gate_up(layer: Any, kind: Linear, b: Tensor) -> bool:
    widths = list(getattr(layer, "logical_widths", None) or ())
    fits = len(widths) == 2 and widths[0] == widths[1] and sum(widths) == kind.n == b.shape[1]
    plain = getattr(layer, "bias", None) is None and kind.out_dtype is torch.bfloat16 and kind.blocks == 0
    return fits and plain and kind.n % GATE_UP_ROWS == 0 and kind.k % 16 == 0 and b.t().is_contiguous()


def _fuses() -> bool:
    """Whether vLLM, as it is configured, compiles graphs in which layers may become one op with their successors."""
    config = import_module("vllm.config").get_current_vllm_config_or_none()
    if config is None or fusion.key_of(config) is None or config.lora_config is not None or invariance.vllm_asks():
        return False
    if config.compilation_config.mode.name != _COMPILED:
        return False
    offloads = config.offload_config  # another address of the weights in each step
    return not (offloads.uva.cpu_offload_gb or offloads.prefetch.offload_group_size)


def _slower(like: GateUp, kind: Linear, *operands: Tensor) -> str | None:
    """The reason why the two ops are left, None if the one op takes less time in the mean. Times it once for layers that are alike."""
    if not contest.can_time(operands[0]):
        return None
    if like not in _worth:
        try:
            times = {rows: _times_us(like, kind, rows, *operands) for rows in contest.TIMED_ROWS}
            _worth[like] = _why_slower(times)
        except Exception as error:  # whatever is wrong, the two ops serve
            _worth[like] = unusable(error)
        if (why := _worth[like]) is not None:
            served.left(str(like), why)
    return _worth[like]


def _why_slower(times_us: dict[int, tuple[float, float]]) -> str | None:
    ratios = [two / one for one, two in times_us.values()]
    if min(ratios) >= _LEAST and math.prod(ratios) >= 1:
        return None
    told = ", ".join(f"{rows}: {one:.1f} and {two:.1f}" for rows, (one, two) in times_us.items())
    return f"a GEMM and a second op take less time (us of one op and of two at {told})"


def _times_us(like: GateUp, kind: Linear, rows: int, *operands: Tensor) -> tuple[float, float]:
    """The shortest times of the one op and of the two. Fewer rows would not stand for as many: tiles fill the GPU otherwise."""
    b, _, b_scales = operands
    a, scales = contest.random_codes(rows, kind, b.device), _small_scale(like, b_scales)
    scale = torch.ones(1, dtype=torch.float32, device=b.device)

    def of_two() -> Tensor:
        product = contest.by_split(a, b, scales, b_scales, kind.out_dtype, None, None, None, str(kind))
        codes = torch.empty((rows, like.n // 2), dtype=kind.codes, device=b.device)
        getattr(getattr(torch.ops, NAMESPACE), VLLM_PREFIX + QUANT)(codes, product, scale)
        return codes

    def of_one() -> object:
        return gemmill.scaled_mm_act_quant(a, b, scales, b_scales.reshape(-1), "silu", static_scale=scale)

    return contest.shortest_us(of_one, of_two, cold=rows <= contest.FEW_ROWS, device=b.device)


def _small_scale(like: GateUp, b_scales: Tensor) -> Tensor:
    """A scale of activations, [1], with which no gate is larger than 1. SiLU of gates below -87 needs a slower reciprocal, and random
    activations, all positive, would have many of these, where a model has few."""
    return (1 / (_LARGEST_CODE**2 * like.k) / b_scales.float().max()).reshape(1)


def _pack(b: Tensor, b_scales: Tensor) -> None:
    """Order b's columns, and b_scales where there are as many, in place.

    Kernels of other streams, and those that start before their predecessor ends, read weights of one order.
    """
    _wait(b)
    with torch.no_grad():
        rows = b.data.t().view(torch.uint8)
        rows.copy_(pack_gate_up(rows, "gate_up"))
        if b_scales.numel() > 1:
            flat = b_scales.data.view(-1)
            flat.copy_(pack_gate_up(flat, "gate_up"))
    _wait(b)


def _wait(b: Tensor) -> None:
    if b.is_cuda:
        torch.cuda.synchronize(b.device)


def _is_packed(b: Tensor, b_scales: Tensor, *, fused: bool) -> bool:
    """Whether b is packed at this call; one of the fused op packs it, if it may. Raises RuntimeError for weights that have moved."""
    order = _orders.get(b.data_ptr())
    if order is None:
        if any(one.is_packed and (one.layer.k, one.layer.n) == b.shape for one in _orders.values()):
            raise RuntimeError(
                f"weights of [K, N] = {list(b.shape)} lie where gemmill has not seen a layer's, and weights like them are in the order of gated "
                "GEMMs: set GEMMILL_VLLM_OPS=0 if the engine moves weights after it has loaded them"
            )
        return False
    if order.is_packed or order.is_kept:
        return order.is_packed
    with _lock:  # vLLM runs parts of a batch in threads
        if _captures(b):
            order.is_kept = order.is_kept or not order.is_packed
        elif fused and not (order.is_packed or order.is_kept):
            _pack(b, b_scales)
            order.is_packed = True
            take(order.layer, _FUSED)
    return order.is_packed


def _captures(b: Tensor) -> bool:
    return b.is_cuda and torch.cuda.is_current_stream_capturing()


def _product(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out_dtype: torch.dtype, layer: str) -> Tensor:
    """The op `product`: gates, then ups, [M, N], by the kernel that serves so many rows of a layer."""
    packed = _is_packed(b, b_scales, fused=False)
    out = contest.by_split(a, b, a_scales, b_scales, out_dtype, None, None, None, layer)
    return out.index_select(1, torch.cat(packed_rows(out.shape[1] // 2, out.device))) if packed else out


def _product_silu_codes(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, scale: Tensor, layer: str) -> Tensor:
    """The fused op: codes [M, N / 2] of gate / (1 + exp(-gate)) * up by `scale`, of one value."""
    if _is_packed(b, b_scales, fused=True):
        codes, _ = gemmill.scaled_mm_act_quant(
            a, b, a_scales, b_scales.reshape(-1), "silu", static_scale=scale.reshape(1)
        )
        return codes
    product = contest.by_split(a, b, a_scales, b_scales, torch.bfloat16, None, None, None, layer)
    codes = _empty_codes(a, b)
    getattr(getattr(torch.ops, quant.VLLM), QUANT)(codes, product, scale)
    return codes


def _empty_codes(a: Tensor, b: Tensor, *rest: object) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1] // 2))


def _empty_product(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out_dtype: torch.dtype, layer: str
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


_LIBRARY = torch.library.Library("gemmill_engines", "FRAGMENT")
_OPERANDS = "Tensor a, Tensor b, Tensor a_scales, Tensor b_scales"
_LIBRARY.define(f"gate_up({_OPERANDS}, ScalarType out_dtype, str layer) -> Tensor")
_LIBRARY.define(f"gate_up_silu_codes({_OPERANDS}, Tensor scale, str layer) -> Tensor")
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("gate_up", _product, _key)
    _LIBRARY.impl("gate_up_silu_codes", _product_silu_codes, _key)
_LIBRARY._register_fake("gate_up", _empty_product)
_LIBRARY._register_fake("gate_up_silu_codes", _empty_codes)
product = torch.ops.gemmill_engines.gate_up.default
"""Of (a, b, a_scales, b_scales, out_dtype, layer): b's rows in either order, the result's columns are gates, then ups."""
product_silu_codes = torch.ops.gemmill_engines.gate_up_silu_codes.default
"""Of (a, b, a_scales, b_scales, scale, layer)."""


def fuse(graph: fx.Graph) -> int:
    """Make one op of each product and vLLM's SiLU with a given scale behind it, in a functional graph; the number of new ops."""
    library = getattr(torch.ops, quant.VLLM)
    theirs = getattr(library, QUANT).default if hasattr(library, QUANT) else None
    made = 0
    for node in list(graph.nodes):
        if node.target is auto_functionalized and node.args[0] is theirs:
            made += _fused(graph, node)
    for node in graph.nodes:
        if node.op == "call_function" and node.target is product:
            served.left(
                f"product of a {node.args[-1]}",
                "its graph has other readers of gates and ups than SiLU with a given scale, so it stays an op of its own",
            )
    return made


def _fused(graph: fx.Graph, silu: fx.Node) -> bool:
    of_layer, scale = silu.kwargs["input"], silu.kwargs["scale"]
    if not (isinstance(of_layer, fx.Node) and of_layer.target is product and len(of_layer.users) == 1):
        return False
    readers = list(silu.users)
    if of_layer.kwargs or any(reader.args[1:] != (1,) for reader in readers):  # (None, codes)
        return False
    *operands, out_dtype, layer = of_layer.args
    if out_dtype is not torch.bfloat16:
        return False
    with graph.inserting_before(silu):
        codes = graph.call_function(product_silu_codes, (*operands, scale, layer))
    for reader in readers:
        codes.meta.update(reader.meta)
        reader.replace_all_uses_with(codes)
        graph.erase_node(reader)
    graph.erase_node(silu)
    graph.erase_node(of_layer)
    return True
