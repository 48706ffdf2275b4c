"""2:4 magnitude pruning: each four weights along K keep their two largest.

Pruning loses several times as much as quantisation to FP4 (docs/sparse_mm.md), so its functions return the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, encode, pack, unpack
from gemmill.formats.sparse_fp4 import PATTERN_BITS, SPAN, SparseFp4, packed_patterns
from gemmill.formats.two_to_four import GROUP, KEPT
from gemmill.quantize.weights import QuantizedWeight, chunks, quantize_weight, refuse_not_finite
from gemmill.vocab.float_type import E2M1, UE4M3
from gemmill.vocab.format import NVFP4

_REFITS = 2
"""How many times least squares fits scales to codes, and scales make new codes. More times change nothing that can be
seen.
"""


@dataclass(frozen=True, kw_only=True)
class ExpertError:
    """The error of one expert's sparse weights relative to their source."""

    expert: int
    weights: float
    """Sum of the squared changes of weights over the sum of their squares; 0 where all are zero."""
    pruned: float
    """The part of that sum which pruning alone costs, with the kept weights as they were."""
    outputs: float | None = None
    """The same ratio as `weights`, for outputs of inputs from the caller."""

    def __str__(self) -> str:
        outputs = "" if self.outputs is None else f", outputs {self.outputs:.2e}"
        return f"expert {self.expert}: weights {self.weights:.2e}, of which pruning {self.pruned:.2e}{outputs}"


def pruned(weight: Tensor) -> Tensor:
    """A weight [N, K] with the two smallest of each four along K set to zero. Of equal ones it keeps the first.

    Raises ValueError where K is no multiple of four, and for the first weight that is NaN or infinite.
    """
    if weight.dim() != 2 or weight.shape[1] % GROUP:
        raise ValueError(f"the weight has shape {list(weight.shape)}, expected [N, K] with K a multiple of {GROUP}")
    refuse_not_finite(weight)
    result = torch.zeros_like(weight)
    for rows in chunks(weight):
        part = weight[rows]
        kept = kept_places(part.float())
        four = part.unflatten(1, (-1, GROUP)).float()
        result[rows] = torch.zeros_like(four).scatter_(2, kept, four.gather(2, kept)).flatten(1).to(weight.dtype)
    return result


def kept_places(weight: Tensor) -> Tensor:
    """Places int64 [N, K / 4, 2] of the two largest magnitudes of each four, ascending. Of equal ones the first
    count."""
    magnitude = weight.abs().unflatten(-1, (-1, GROUP))
    return magnitude.sort(dim=-1, descending=True, stable=True).indices[..., :KEPT].sort(dim=-1).values


def prune_to_fp4(
    experts: Sequence[Sequence[Tensor | QuantizedWeight]],
    *,
    rescale: bool = False,
    inputs: Sequence[Tensor | None] | None = None,
) -> tuple[SparseFp4, list[ExpertError]]:
    """Make 2:4 sparse nvfp4 of experts. Return it, and the error of each.

    An expert is its parts [N, K], whose rows follow one another: gate and up, or down alone. Each part has a global
    scale of its own. Parts are bf16, f16, f32 or f64, or nvfp4 of `quantize_weight`.

    It prunes weights of floats by their magnitudes, then quantises them. Codes of nvfp4 stay as they are. With
    `rescale`, least squares fits scales of floats to the kept weights, where that lessens the error. `inputs` are
    [tokens, K] of each expert. With them every part also gets the factor that brings its outputs nearest.

    Raises ValueError for parts that disagree, and for K that is no multiple of 32. It also raises it for infinite or
    NaN weights, by their place.
    """
    if not experts or not experts[0]:
        raise ValueError(f"there are {len(experts)} experts of no parts: each has one weight or more")
    shapes = [tuple(_shape(part) for part in parts) for parts in experts]
    if len(set(shapes)) > 1 or len(set(shapes[0])) > 1:
        odd = next(i for i, shape in enumerate(shapes) if shape != shapes[0] or len(set(shape)) > 1)
        raise ValueError(
            f"expert {odd} has parts of {list(map(list, shapes[odd]))}, expected {list(shapes[0][0])} of all parts and experts"
        )
    for part in (part for parts in experts for part in parts):
        _check_part(part)
    made, errors = [], []
    for e, parts in enumerate(experts):
        seen = None if inputs is None else inputs[e]
        made.append([_part(part, rescale, seen) for part in parts])
        errors.append(_error(e, made[-1], with_outputs=seen is not None))
    weights = SparseFp4(
        codes=torch.stack([torch.cat([part.codes for part in parts]) for parts in made]),
        patterns=torch.stack([torch.cat([part.patterns for part in parts]) for parts in made]),
        scales=torch.stack([torch.cat([part.scales for part in parts]) for parts in made]),
        weight_scale_2=torch.stack([torch.cat([part.factor for part in parts]) for parts in made]),
    )
    return weights, errors


@dataclass(kw_only=True)
class _Sums:
    """Sums of squares and products of old and new values, float64."""

    before: float = 0.0
    product: float = 0.0
    after: float = 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        first, second = before.double(), after.double()
        self.before += float(first.square().sum())
        self.product += float((first * second).sum())
        self.after += float(second.square().sum())

    def changed(self, factor: float) -> float:
        """The sum of squared changes for new values times `factor`."""
        return max(self.before - 2 * factor * self.product + factor * factor * self.after, 0.0)


@dataclass(frozen=True, kw_only=True)
class _Part:
    codes: Tensor
    patterns: Tensor
    scales: Tensor
    factor: Tensor
    """f32 [1]: it multiplies."""
    multiplied: float
    """The factor on top of the global scale."""
    weights: _Sums
    kept: float
    """The sum of the squares of the kept weights."""
    outputs: _Sums


def _part(weight: Tensor | QuantizedWeight, rescale: bool, inputs: Tensor | None) -> _Part:
    quantized = weight if isinstance(weight, QuantizedWeight) else quantize_weight(weight, str(NVFP4))
    assert quantized.global_scale is not None
    global_scale, (n, k) = quantized.global_scale, (quantized.n, quantized.k)
    codes, scales = quantized.codes.new_empty((n, k // GROUP)), quantized.scales.clone()
    patterns = codes.new_empty((n, k // SPAN * PATTERN_BITS))
    of_weights, of_outputs, kept_squares = _Sums(), _Sums(), 0.0
    for rows in chunks(torch.empty((n, k), device="meta", dtype=torch.float32)):
        before = weight[rows].float() if isinstance(weight, Tensor) else quantized.values(rows)
        places = kept_places(before)
        kept = before.unflatten(1, (-1, GROUP)).gather(2, places)
        numbers = unpack(quantized.codes[rows], E2M1.bits).unflatten(1, (-1, GROUP)).gather(2, places)
        if rescale and isinstance(weight, Tensor):
            scales[rows], numbers = _fitted(kept, scales[rows], numbers, global_scale)
        codes[rows], patterns[rows] = pack(numbers.flatten(1), E2M1.bits), packed_patterns(places)
        spread = decode(scales[rows], UE4M3).repeat_interleave(NVFP4.group // GROUP, dim=1)[..., None]
        values = decode(numbers, E2M1) * spread / global_scale
        after = torch.zeros_like(before).unflatten(1, (-1, GROUP)).scatter_(2, places, values).flatten(1)
        of_weights.add(before, after)
        kept_squares += float(kept.double().square().sum())
        if inputs is not None:
            seen = inputs.to(before)
            of_outputs.add(seen @ before.t(), seen @ after.t())
    multiplied = of_outputs.product / of_outputs.after if rescale and of_outputs.product > 0 else 1.0
    return _Part(
        codes=codes,
        patterns=patterns,
        scales=scales,
        factor=(multiplied / global_scale.double()).float().reshape(1),
        multiplied=multiplied,
        weights=of_weights,
        kept=kept_squares,
        outputs=of_outputs,
    )


def _fitted(kept: Tensor, scales: Tensor, numbers: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scales [N, K / 16] and codes [N, K / 4, 2] nearer to the kept weights, or the old ones where none are."""
    wanted = grouped(kept.flatten(1) * global_scale, NVFP4.group * KEPT // GROUP)
    codes = numbers.flatten(1).reshape(wanted.shape)
    best = (wanted - decode(codes, E2M1) * decode(scales, UE4M3)[..., None]).square().sum(dim=-1)
    for _ in range(_REFITS):
        means = decode(codes, E2M1)
        squares = means.square().sum(dim=-1)
        fitted = torch.where(squares > 0, (wanted * means).sum(dim=-1) / squares.clamp(min=1e-30), 0.0)
        tried = encode(fitted.clamp(min=0.0), UE4M3)
        divisor = decode(tried, UE4M3)[..., None]
        made = encode(torch.where(divisor > 0, wanted / divisor.clamp(min=1e-30), 0.0), E2M1)
        error = (wanted - decode(made, E2M1) * divisor).square().sum(dim=-1)
        is_better = error < best
        best = torch.where(is_better, error, best)
        scales = torch.where(is_better, tried, scales)
        codes = torch.where(is_better[..., None], made, codes)
    return scales, codes.reshape(numbers.shape)


def _error(expert: int, parts: Sequence[_Part], *, with_outputs: bool) -> ExpertError:
    weights, kept = sum(part.weights.before for part in parts), sum(part.kept for part in parts)
    outputs = sum(part.outputs.before for part in parts)
    return ExpertError(
        expert=expert,
        weights=_ratio(sum(part.weights.changed(part.multiplied) for part in parts), weights),
        pruned=_ratio(weights - kept, weights),
        outputs=_ratio(sum(part.outputs.changed(part.multiplied) for part in parts), outputs) if with_outputs else None,
    )


def _ratio(part: float, whole: float) -> float:
    return max(part, 0.0) / whole if whole else 0.0


def _shape(weight: Tensor | QuantizedWeight) -> tuple[int, ...]:
    return tuple(weight.shape) if isinstance(weight, Tensor) else (weight.n, weight.k)


def _check_part(weight: Tensor | QuantizedWeight) -> None:
    """Raise ValueError for a part from which no sparse FP4 can be made."""
    if isinstance(weight, QuantizedWeight):
        if weight.format != str(NVFP4):
            raise ValueError(f"the weight is {weight.format}: 2:4 sparse FP4 is made of floats or of {NVFP4}")
    elif weight.dim() == 2:
        refuse_not_finite(weight)
    shape = _shape(weight)
    if len(shape) != 2 or shape[1] % SPAN:
        raise ValueError(
            f"the weight has shape {list(shape)}, expected [N, K] with K a multiple of {SPAN}, whose patterns are whole bytes"
        )
