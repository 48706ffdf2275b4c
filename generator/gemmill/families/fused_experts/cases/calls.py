"""Calls by their sizes and options: operands, and expected results."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.fused_experts.bounds import judged
from gemmill.families.fused_experts.config import CODED, GROUP
from gemmill.families.fused_experts.ops import FUSED_EXPERTS
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.packing import PACKINGS, Packing
from gemmill.families.fused_experts.reference import GATE_UP
from gemmill.families.fused_experts.serving import layer_of
from gemmill.formats.codes import pack
from gemmill.formats.quantise import BlockScaled
from gemmill.formats.sparse_fp4 import PATTERN_BITS, PATTERNS, SparseFp4
from gemmill.numerics.comparison import Wanted
from gemmill.quantize.experts import prepack_experts
from gemmill.quantize.sparse_blocks import to_sparse_blocks
from gemmill.vocab import DType
from gemmill.vocab.activation import Activation

NEUTRAL, OF_SWIGLU = (1.0, math.inf, 0.0), (1.702, 7.0, 1.0)
"""alpha, limit and beta: of activations that have none, and of gpt-oss's SwiGLU."""
NONE, ONE, ALL = "none", "one", "any"


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    tokens: int
    hidden: int
    inner: int
    weights: int
    topk: int
    dtype: DType = CODED
    out_dtype: DType = DType.BF16
    group_size: int = 0
    packing: Packing | None = None
    """The packing of weights; None for unpacked ones."""
    activation: Activation = Activation.SILU
    order: int = GATE_UP
    mapped: tuple[int, ...] | None = None
    """The index of each expert's weights, -1 for none; None for a call without a map."""
    routed: str = ALL
    """Where tokens go: to "any" experts, all to "one", or to "none". Of "any", some ids name no expert."""
    biased: bool = False
    weight_on_input: bool = False
    adds: bool = False
    wide_ids: bool = False
    """Whether ids have 64 bits."""
    of_experts: bool = False
    """Whether each expert's weights have one scale."""
    lent: bool = False
    """Whether the caller gives the workspace."""
    data: str = "random"
    """The distribution of values: "random", or "integers", which are small.

    With "integers" scales are powers of two, and each group of a row of x has one 448. So codes and sums of x are exact.
    """
    pad: int = 0
    """Elements between rows of x and of out."""
    by_warps: bool = False
    """Whether only kernels whose warps multiply may serve the call: then the bound has the loss of their sums."""
    fused: bool = False
    """Whether neither grouped GEMMs nor streamed kernels may compute the call's products: then the bound leaves their roundings out."""

    @property
    def op(self) -> str:
        """The op's name."""
        return (FUSED_EXPERTS if self.packing is None else FUSED_FP4_EXPERTS).name

    @property
    def numbers(self) -> tuple[float, float, float]:
        """alpha, limit and beta of the activation."""
        return OF_SWIGLU if self.activation is Activation.SWIGLU else NEUTRAL

    @property
    def experts(self) -> int:
        """How many experts ids may name."""
        return self.weights if self.mapped is None else len(self.mapped)

    def __str__(self) -> str:
        words = [
            f"{self.tokens} tokens, top {self.topk} of {self.experts} experts, hidden, inner = {self.hidden}, {self.inner}"
        ]
        words += [f"{self.dtype} to {self.out_dtype}", self.activation.spelled, f"routed to {self.routed}"]
        words += [f"weights of {self.packing}"] if self.packing is not None else []
        words += [f"groups of {self.group_size}"] if self.group_size else []
        words += [f"map {self.mapped}"] if self.mapped is not None else []
        words += [name for name in ("biased", "weight_on_input", "adds", "of_experts", "lent") if getattr(self, name)]
        words += ["exact"] if self.data == "integers" else []
        return "; ".join(words)


def make_given(p: CallSpec, device: torch.device) -> dict[str, Any]:
    """Arguments by name, without pure outputs. The same spec has the same data."""
    g = torch.Generator(device=device).manual_seed(p.tokens * 1_000_003 + p.hidden * 1009 + p.inner)
    half, weights, gates = _torch(p.out_dtype), _torch(p.dtype), 2 * p.inner
    x = torch.full((p.tokens, p.hidden + p.pad), torch.nan, dtype=half, device=device)[:, : p.hidden]
    x.copy_(_values((p.tokens, p.hidden), p, g))
    if p.data == "integers":
        x[:, :: p.group_size or GROUP] = 448
    shapes: list[tuple[int, ...]] = [(p.weights, gates), (p.weights, p.hidden)]
    if p.group_size:
        blocks = [-(-size // p.group_size) for size in (gates, p.hidden, p.inner)]
        shapes = [(p.weights, blocks[0], blocks[1]), (p.weights, blocks[1], blocks[2])]
    elif p.of_experts:
        shapes = [(p.weights,), (p.weights,)]
    scales = [_scales(shape, p, g) if p.dtype is CODED else None for shape in shapes]
    small = 1.0 if p.dtype is CODED else 1 / 16  # else products of products leave f16
    alpha, limit, beta = p.numbers
    if p.packing is None:
        told: dict[str, Any] = {
            "w13": (_values((p.weights, gates, p.hidden), p, g) * small).to(weights),
            "w2": (_values((p.weights, p.hidden, p.inner), p, g) * small).to(weights),
            "w13_scales": scales[0],
            "w2_scales": scales[1],
        }
    else:
        told = {"format": PACKINGS.index(p.packing)}
        told |= _packed(p, p.packing, "w13", (gates, p.hidden), g) | _packed(p, p.packing, "w2", (p.hidden, p.inner), g)
    return told | {
        "x": x,
        "topk_ids": _ids(p, g),
        "topk_weights": torch.rand((p.tokens, p.topk), device=device, generator=g, dtype=torch.float32),
        "activation": p.activation.spelled,
        "alpha": alpha,
        "limit": limit,
        "beta": beta,
        "order": p.order,
        "weight_on_input": p.weight_on_input,
        "adds": p.adds,
        "w13_bias": _bias((p.weights, gates), p, g),
        "w2_bias": _bias((p.weights, p.hidden), p, g),
        "expert_map": None if p.mapped is None else torch.tensor(p.mapped, dtype=torch.int32, device=device),
        "workspace": None,
    }


def arguments_of(given: dict[str, Any]) -> list[Any]:
    """Arguments in the order of the op's schema."""
    schema = FUSED_FP4_EXPERTS if "format" in given else FUSED_EXPERTS
    return [given[name] for name in schema.arguments]


def wanted_of(given: dict[str, Any], *, exactly: bool, by_warps: bool = False, fused: bool = False) -> Wanted:
    """The expected results of a call. `out` among its arguments has its contents before the call.

    `by_warps`: no kernel serves it whose sums lose more than those of warps. `fused`: neither grouped GEMMs nor streamed kernels do.
    """
    before = given["out"].clone() if given["adds"] else None
    layer = replace(layer_of(given), by_warps=by_warps, fused=fused)
    found = judged(layer, before, exactly=exactly and layer.sums_exactly)
    return Wanted(rounded=found.rounded, exact=found.exact, bound=found.bound)


def _packed(p: CallSpec, packing: Packing, name: str, shape: tuple[int, int], g: torch.Generator) -> dict[str, Tensor]:
    """Packed weights of every expert and their bases. Scales lie near 1, and are powers of two of integers."""
    (n, k), format = shape, packing.format
    one, step = (56, 8) if format.has_global_scale else (127, 1)
    least, end = (-1, 2) if p.data == "integers" else (-3, 2)
    if packing.sparse_group:
        return _sparse(p, packing.sparse_group, name, shape, g)
    experts = []
    for _ in range(p.weights):
        codes = torch.randint(0, 256, (n, format.code_bytes(k)), device=g.device, generator=g, dtype=torch.int64)
        scales = one + step * torch.randint(
            least, end, (n, format.scale_count(k)), device=g.device, generator=g, dtype=torch.int64
        )
        experts.append(BlockScaled(format=format, codes=codes.to(torch.uint8), scales=scales.to(torch.uint8)))
    packed = prepack_experts(
        experts,
        activations="e4m3" if packing.is_coded else "bf16",
        rounded=packing.is_coded and format.has_global_scale,
    )
    return {name: packed.blocks, f"{name}_scales": packed.base * _scales((p.weights, n), p, g)}


def _sparse(p: CallSpec, group: int, name: str, shape: tuple[int, int], g: torch.Generator) -> dict[str, Tensor]:
    """2:4 sparse weights of every expert, any codes at any places."""
    n, k = shape
    least, end = (-1, 2) if p.data == "integers" else (-3, 2)
    integers = partial(torch.randint, device=g.device, generator=g)
    weights = SparseFp4(
        codes=integers(0, 256, (p.weights, n, k // 4)).to(torch.uint8),
        patterns=pack(integers(0, len(PATTERNS), (p.weights, n, k // 4)).to(torch.uint8), PATTERN_BITS),
        scales=(56 + 8 * integers(least, end, (p.weights, n, k // group))).to(torch.uint8),
        weight_scale_2=torch.ones(p.weights, 1, device=g.device, dtype=torch.float32),
    )
    blocks = torch.stack([to_sparse_blocks(weights, e).blocks for e in range(p.weights)])
    return {name: blocks, f"{name}_scales": _scales((p.weights, n), p, g)}


def _ids(p: CallSpec, g: torch.Generator) -> Tensor:
    shape, kind = (p.tokens, p.topk), torch.int64 if p.wide_ids else torch.int32
    if p.routed == NONE:
        return torch.full(shape, -1, dtype=kind, device=g.device)
    if p.routed == ONE:
        return torch.full(shape, p.experts - 1, dtype=kind, device=g.device)
    ids = torch.randint(0, p.experts, shape, device=g.device, generator=g, dtype=torch.int64)
    ids.view(-1)[3::13], ids.view(-1)[7::17] = p.experts, -1
    return ids.to(kind)


def _torch(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch_name)
    return found


def _values(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return torch.randint(-2, 3, shape, device=g.device, generator=g, dtype=torch.int64).float()
    return torch.randn(shape, device=g.device, generator=g, dtype=torch.float32)


def _scales(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    if p.data == "integers":
        return torch.exp2(torch.randint(-9, -6, shape, device=g.device, generator=g, dtype=torch.int64).float())
    return torch.rand(shape, device=g.device, generator=g, dtype=torch.float32) * 0.02 + 0.005


def _bias(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor | None:
    return _values(shape, p, g).to(_torch(p.out_dtype)) if p.biased else None
