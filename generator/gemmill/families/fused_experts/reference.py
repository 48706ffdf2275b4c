"""fused_experts in plain torch, on any device, in the arithmetic of its kernels.

A pair is a token and one of its experts. For each pair:

    scale     of x where weights are e4m3, or folded into it: max(amax / 448, 1 / (448 * 512)) of each 128 or 32 of a row, or of the row
    x         the e4m3 code of x / scale; x itself where weights have 16 bits
    products  scales (codes W13), plus bias, times the router's weight where that belongs to the input; rounded to x's dtype
    results   activation(gate) up in float32; coded as x is, or rounded to x's dtype
    part      (scales (results W2), plus bias) times the router's weight, in float32; kernels of packed weights round it to x's dtype
    out       parts of a token's experts, summed in their order in float32, and rounded once

Packed weights decode first: the product of each code, scale and base is exact in float64. Sums of products are in
float64. Scales of rows multiply last: a_scale * (sum * b_scale).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gemmill.families.fused_experts.config import GROUPS
from gemmill.formats.gating import activated, group_codes, group_scales
from gemmill.vocab.activation import Activation

GATE_UP, UP_GATE, INTERLEAVED = range(3)
"""Orders of rows of w13: gates before ups, ups before gates, or each gate before its up."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Operands of a call, as the op has them. Scales are [weights, rows], or of blocks of g = 128 or 32 [weights, rows / g, columns / g].

    Packed weights come decoded here: float64, without scales.
    """

    x: Tensor
    w13: Tensor
    w2: Tensor
    w13_scales: Tensor | None
    w2_scales: Tensor | None
    topk_ids: Tensor
    topk_weights: Tensor
    w13_bias: Tensor | None = None
    w2_bias: Tensor | None = None
    expert_map: Tensor | None = None
    activation: Activation = Activation.SILU
    alpha: float = 1.0
    limit: float = float("inf")
    beta: float = 0.0
    order: int = GATE_UP
    weight_on_input: bool = False
    is_folded: bool = False
    """Whether packed weights were folded into e4m3."""
    by_warps: bool = False
    """Whether only kernels whose warps multiply may have served the call. Sums of others lose more."""
    fused: bool = False
    """Whether neither grouped GEMMs nor streamed kernels may have made the call's products, which these round to x's dtype."""
    numbers: tuple[float, float, float] = field(init=False)
    """alpha, limit and beta."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", (self.alpha, self.limit, self.beta))

    @property
    def is_coded(self) -> bool:
        """Whether activations become codes of e4m3."""
        return self.w13.dtype is torch.float8_e4m3fn or self.is_folded

    @property
    def is_packed(self) -> bool:
        """Whether weights were packed. Decoded, they are float64."""
        return self.w13.dtype is torch.float64

    @property
    def group(self) -> int:
        """Elements of a row of activations that share a scale; 0 for all of them."""
        if self.w13_scales is None or self.w13_scales.dim() != 3:
            return 0
        (rows, columns), shape = self.w13.shape[1:], self.w13_scales.shape[1:]
        return next(group for group in GROUPS if shape == (-(-rows // group), -(-columns // group)))

    @property
    def may_sum_e4m3(self) -> bool:
        """Whether the tensor core for e4m3 may make sums: of folded weights, of streamed ones, which have scales in groups, and in
        grouped GEMMs."""
        grouped_gemms = self.is_coded and self.may_round_products
        return self.is_folded or grouped_gemms or (bool(self.group) and not self.by_warps)

    @property
    def may_round_products(self) -> bool:
        """Whether both products may round to x's dtype before biases and weights, as in grouped GEMMs and streamed kernels."""
        return not self.is_packed and not self.by_warps and not self.fused

    @property
    def sums_exactly(self) -> bool:
        """Whether sums of small integers are exact: those of e4m3 along all of K are not."""
        return bool(self.group) or not self.may_sum_e4m3

    @property
    def may_round_parts(self) -> bool:
        """Whether parts may round to x's dtype before their sum, as kernels of packed weights do."""
        return self.is_packed

    @property
    def local(self) -> Tensor:
        """The index of each pair's weights, int64 [tokens, topk]; -1 for none."""
        ids, weights = self.topk_ids.long(), self.w13.shape[0]
        experts = weights if self.expert_map is None else self.expert_map.numel()
        known = (ids >= 0) & (ids < experts)
        if self.expert_map is not None and experts:
            ids = self.expert_map.reshape(-1).long()[ids.where(known, 0)]
        return ids.where(known & (ids >= 0) & (ids < weights), -1)

    def gate_and_up(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gates, and ups, of results in w13's rows: [..., 2 inner] becomes [..., inner] twice."""
        if self.order == INTERLEAVED:
            return rows[..., ::2], rows[..., 1::2]
        first, second = rows.chunk(2, dim=-1)
        return (first, second) if self.order == GATE_UP else (second, first)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Pairs of one expert, which are the M rows of its products."""

    weights: int
    """Index of the expert's weights."""
    tokens: Tensor
    """Each pair's token, int64 [M]."""
    slots: Tensor
    """Each pair's place among its token's experts, int64 [M]."""


def rows_of(layer: Layer) -> Iterator[Rows]:
    """Pairs of every expert with rows, in the order of the indices of weights."""
    local = layer.local
    for weights in local.unique().tolist():
        if weights >= 0:
            tokens, slots = (local == weights).nonzero(as_tuple=True)
            yield Rows(weights=weights, tokens=tokens, slots=slots)


def coded(values: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """e4m3 codes of float32 rows [M, K], and their float32 scales: [M, ceil(K / group)], or [M, 1] for a group of 0."""
    size = group or max(values.shape[1], 1)
    scales = group_scales(values, size)
    return group_codes(values, scales, size), scales


def products(a: Tensor, b: Tensor, a_scales: Tensor | None, b_scales: Tensor | None, group: int) -> Tensor:
    """a_scales b_scales (a b^T) of one expert, float32 [M, N], of a [M, K] and b [N, K].

    With scales in groups the sum rounds once. With scales of rows each multiplication rounds, too. Decoded weights have
    none.
    """
    if a_scales is None:
        return (a.double() @ b.double().t()).float()
    if b_scales is None:
        return a_scales.reshape(-1, 1) * (a.double() @ b.double().t()).float()
    if not group:
        return a_scales.reshape(-1, 1) * ((a.double() @ b.double().t()).float() * b_scales.reshape(1, -1))
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device)
    for part, scale in each_group(a.double(), b.double(), a_scales, b_scales, group):
        total += scale * part
    return total.float()


def each_group(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each group along K: the sum of its products, and the float32 product of its scales, as float64 [M, N]."""
    rows = torch.arange(b.shape[0], device=b.device, dtype=torch.int64) // group
    for g, start in enumerate(range(0, a.shape[1], group)):
        part = a[:, start : start + group] @ b[:, start : start + group].t()
        yield part, (a_scales[:, g, None] * b_scales[rows, g]).double()


def weights_of(layer: Layer, rows: Rows) -> Tensor:
    """The router's weights of pairs, float32 [M, 1]."""
    return layer.topk_weights[rows.tokens, rows.slots, None]


def inner_products(layer: Layer, rows: Rows) -> Tensor:
    """Products of x and W13 in float32 [M, 2 inner], before they round to x's dtype."""
    x = layer.x[rows.tokens]
    codes, scales = coded(x.float(), layer.group) if layer.is_coded else (x, None)
    b_scales = None if layer.w13_scales is None else layer.w13_scales[rows.weights]
    total = products(codes, layer.w13[rows.weights], scales, b_scales, layer.group)
    return ended(total, layer.w13_bias, layer, rows, weighted=layer.weight_on_input)


def ended(total: Tensor, bias: Tensor | None, layer: Layer, rows: Rows, *, weighted: bool) -> Tensor:
    """Sums [M, N] plus their bias, and times the router's weight where `weighted`."""
    if bias is not None:
        total = total + bias[rows.weights].to(total.dtype)
    return total * weights_of(layer, rows).to(total.dtype) if weighted else total


def results(layer: Layer, rows: Rows) -> Tensor:
    """activation(gate) up in float32 [M, inner]."""
    rounded = inner_products(layer, rows).to(layer.x.dtype).float()
    return activated(*layer.gate_and_up(rounded), layer.activation, *layer.numbers)


def operand_of(layer: Layer, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The operand of the second product, from results [M, inner]: codes and scales, or values of x's dtype and None."""
    return coded(values, layer.group) if layer.is_coded else (values.to(layer.x.dtype), None)


def parts(layer: Layer) -> Tensor:
    """Each pair's part of its token's result, float32 [tokens, topk, hidden]; zeros for pairs without weights."""
    found = layer.x.new_zeros((*layer.topk_ids.shape, layer.w2.shape[1]), dtype=torch.float32)
    for rows in rows_of(layer):
        codes, scales = operand_of(layer, results(layer, rows))
        b_scales = None if layer.w2_scales is None else layer.w2_scales[rows.weights]
        total = products(codes, layer.w2[rows.weights], scales, b_scales, layer.group)
        found[rows.tokens, rows.slots] = ended(total, layer.w2_bias, layer, rows, weighted=not layer.weight_on_input)
    return found


def fused_experts(layer: Layer, added_to: Tensor | None = None) -> Tensor:
    """The op's result, [tokens, hidden] in x's dtype. With `added_to` that joins the sum before the result rounds."""
    found, total = parts(layer), torch.zeros(layer.x.shape, dtype=torch.float32, device=layer.x.device)
    for slot in range(found.shape[1]):
        total = total + found[:, slot]
    return (total if added_to is None else added_to.float() + total).to(layer.x.dtype)
