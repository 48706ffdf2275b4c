"""Experts of 4-bit weights in three launches, in place of engines' Marlin experts where a build has the kernels.

Packing takes expert by expert, each gate before its up, dense or pruned to 2:4. Bases have a dimension more than those
of grouped GEMMs (`gemmill.compat.fp4_experts`): [E, 1, N]. That and the bytes of a block identify such weights
afterwards.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import gemmill
from gemmill.compat.linear import refusal, serves
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.runtime import served
from gemmill.runtime.notices import LOG

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Gates that stay as engines have them: without limits, all gates before all ups."""
SPARSE = "nvfp4_2to4"
_BLOCK_BYTES = {"nvfp4": 2304, "mxfp4": 2176, SPARSE: 1792}
"""Of 64 rows and 64 columns, by the op's format."""
_FORMATS = tuple(_BLOCK_BYTES)
_GROUPS = {"nvfp4": 16, "mxfp4": 32}
Part = tuple[Tensor, Tensor, Tensor | None]
"""Codes [E, N, K / 2], scales [E, N, K / group] and, with nvfp4, multipliers [E] of one GEMM."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of experts, as far as a variant for it depends on it."""

    rows: ClassVar[tuple[int, ...]] = (1, 64, 1024)
    experts: int
    hidden: int
    inner: int
    format: str

    def __str__(self) -> str:
        return (
            f"layer of {self.experts} experts of {self.hidden} x {self.inner}, {self.format} weights, all in one call"
        )

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m tokens, on torch's meta device."""

        def empty(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=kind, device="meta")

        x, out = (empty(m, self.hidden, kind=torch.bfloat16) for _ in range(2))
        sizes = (2 * self.inner, self.hidden), (self.hidden, self.inner)
        blocks = [empty(*self.blocks_shape(n, k), kind=torch.uint8) for n, k in sizes]
        ids, by = empty(m, 1, kind=torch.int32), empty(m, 1)
        bases = [empty(self.experts, n) for n, _ in sizes]
        numbers = ACTIVATIONS[0], 1.0, math.inf, 0.0, _FORMATS.index(self.format), 2, False, False
        return "fused_fp4_experts", out, x, *blocks, *bases, ids, by, *numbers, None, None, None, None

    def blocks_shape(self, n: int, k: int) -> tuple[int, int, int, int]:
        """Of the packed weights [n, k] of all experts."""
        columns = -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE
        return self.experts, -(-n // SIDE), columns, _BLOCK_BYTES[self.format]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Of one GEMM of all experts."""

    blocks: Tensor
    """uint8 [E, N / 64, bytes of a row of blocks]."""
    base: Tensor
    """f32 [E, 1, N]."""


def is_packed(weight: Tensor, base: Tensor | None) -> bool:
    """Whether an engine's parameters hold such weights."""
    return weight.dtype == torch.uint8 and base is not None and base.dim() == 3


def packed(first: Part, second: Part, dtype: torch.dtype, sparse: bool, of: object) -> tuple[Weights, Weights] | None:
    """Both GEMMs' weights for gemmill's kernels; None where a build has no variant, an expert's weights do not fit, or the first
    call fails.

    The first GEMM's rows are all gates, then all ups. `sparse` prunes nvfp4 to 2:4, and logs the error of the experts.
    `of` is the engine's layer.
    """
    codes, _, multipliers = first
    format = SPARSE if sparse else "mxfp4" if multipliers is None else "nvfp4"
    experts, gates, half = codes.shape
    layer = Layer(experts=experts, hidden=2 * half, inner=gates // 2, format=format)
    if dtype != torch.bfloat16 or (sparse and multipliers is None) or not _fits(first, second):
        return None
    if refusal(layer) is not None:
        return None
    try:
        made = [_made(part, gated, layer) for part, gated in ((first, True), (second, False))]
    except Exception as error:  # whatever is wrong, the engine has kernels of its own
        served.left(str(layer), " ".join(str(error).split()), level=logging.WARNING)
        return None
    return (made[0], made[1]) if _passes(layer, made, of) else None


def _passes(layer: Layer, made: list[Weights], of: object) -> bool:
    """Whether the call of a token passes."""

    def call(x: Tensor, by: Tensor, ids: Tensor, *both: Tensor) -> Tensor:
        weights = [Weights(blocks=blocks, base=base) for blocks, base in (both[:2], both[2:])]
        return multiplied(x, *weights, ACTIVATIONS[0], by, ids, None, torch.empty_like(x))

    device = made[0].blocks.device
    x = torch.zeros((1, layer.hidden), dtype=torch.bfloat16, device=device)
    by = torch.ones((1, 1), dtype=torch.float32, device=device)
    ids = torch.zeros((1, 1), dtype=torch.int32, device=device)
    tensors = (tensor for weights in made for tensor in (weights.blocks, weights.base))
    return serves(layer, "fused_fp4_experts", of, call, x, by, ids, *tensors)


def _fits(first: Part, second: Part) -> bool:
    """Whether shapes are those of one layer."""
    shapes = []
    for codes, scales, multipliers in (first, second):
        group = _GROUPS["mxfp4" if multipliers is None else "nvfp4"]
        experts, n, half = codes.shape
        if scales.shape != (experts, n, 2 * half // group) or (
            multipliers is not None and multipliers.numel() != experts
        ):
            return False
        shapes.append((experts, n, 2 * half))
    (experts, gates, hidden), other = shapes
    return gates % 2 == 0 and other == (experts, hidden, gates // 2)


def _made(part: Part, gated: bool, layer: Layer) -> Weights:
    """One GEMM's weights. Raises ValueError."""
    from gemmill.quantize.experts import rows_in_turns, stacked_blocks
    from gemmill.vocab.format import format_named

    codes, scales, multipliers = part
    own, of_groups = codes.view(torch.uint8), scales.view(torch.uint8)
    order = rows_in_turns(codes.shape[1], "gate_up", codes.device) if gated else None
    if layer.format == SPARSE:
        return _pruned(own, of_groups, multipliers, order, layer)
    blocks, base = stacked_blocks(format_named(layer.format), own, of_groups, order)
    if multipliers is not None:
        base *= multipliers.float().reshape(-1, 1)
    return Weights(blocks=blocks.flatten(2), base=base[:, None])


def _pruned(codes: Tensor, scales: Tensor, multipliers: Tensor | None, order: Tensor | None, layer: Layer) -> Weights:
    """One GEMM's nvfp4 weights pruned to 2:4, an expert after another, with their errors in the log. Raises ValueError."""
    from gemmill.quantize import QuantizedWeight, prune_to_fp4
    from gemmill.quantize.experts import rows_in_turns
    from gemmill.quantize.sparse_blocks import to_sparse_blocks

    assert multipliers is not None
    experts, n, half = codes.shape
    rows = rows_in_turns(n, "interleaved", codes.device) if order is None else order
    blocks = torch.empty(layer.blocks_shape(n, 2 * half), dtype=torch.uint8, device=codes.device)
    base = torch.empty((experts, 1, n), device=codes.device, dtype=torch.float32)
    errors = []
    for e, factor in enumerate(multipliers.float().reshape(-1)):
        weight = QuantizedWeight(format="nvfp4", codes=codes[e], scales=scales[e], global_scale=1 / factor.reshape(1))
        weights, (error,) = prune_to_fp4([[weight]])
        made = to_sparse_blocks(weights, 0, rows)
        blocks[e], base[e, 0] = made.blocks, made.base
        errors.append(error.weights)
    worst = max(range(experts), key=errors.__getitem__)
    LOG.warning(
        "2:4 pruning changed weights of %d experts by %.3g of their squares in the mean, expert %d by %.3g",
        experts, sum(errors) / experts, worst, errors[worst],
    )  # fmt: skip
    return Weights(blocks=blocks.flatten(2), base=base)


def multiplied(
    x: Tensor,
    first: Weights,
    second: Weights,
    activation: str,
    topk_weights: Tensor,
    topk_ids: Tensor,
    expert_map: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Write the weighted sum of the experts topk_ids [M, top] of each token into out [M, K]."""
    columns = -(-x.shape[1] // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE
    of_block = first.blocks.shape[2] // columns
    format = next(name for name, size in _BLOCK_BYTES.items() if size == of_block)
    blocks = [weights.blocks.unflatten(2, (-1, of_block)) for weights in (first, second)]
    bases = [weights.base[:, 0] for weights in (first, second)]
    return gemmill.fused_experts(
        x, *blocks, *bases, topk_ids, topk_weights.float(), activation, order="interleaved", format=format, expert_map=expert_map,
        out=out,
    )  # fmt: skip
