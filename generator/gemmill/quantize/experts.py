"""4-bit weights of all experts of a layer in one tensor, in the order in which grouped kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.quantize.report import PrepackReport
from gemmill.vocab.format import MXFP4, NVFP4, Format

ACTIVATIONS = ("bf16", "e4m3")
"""The activations that packed weights are multiplied by."""


@dataclass(frozen=True, kw_only=True)
class PackedExperts:
    """Weights [E, N, K] as `gemmill.grouped_mm` takes them with a format."""

    format: Format
    """nvfp4 or mxfp4."""
    activations: str
    """"bf16" or "e4m3"."""
    n: int
    k: int
    blocks: Tensor
    """uint8 [E, N / 64 rounded up, padded K / 64 or / 128, bytes of a block]."""
    base: Tensor
    """f32 [E, N]: the factors of rows of weights."""
    reports: tuple[PrepackReport, ...]
    """The report of each expert."""


def prepack_experts(
    experts: Sequence[BlockScaled], *, activations: str = "bf16", allow_requant: bool = False
) -> PackedExperts:
    """Pack the weights [N, K] of experts of one format and size, one after another. The input is not changed.

    activations: "bf16" of nvfp4 and mxfp4; "e4m3" of mxfp4, whose scales then fold into the weights exactly.
    allow_requant: as of `gemmill.quantize.prepack.prepack`. A global scale is no part of this: its inverse is the
    expert's alpha.

    Raises ValueError, in a sentence, for no experts, for experts that differ, and for arguments that do not go
    together. It names a row whose scales spread too far by its expert and number.
    """
    _check(experts, activations)
    first, op = experts[0], "fp4_weight_mm" if activations == "bf16" else "mxfp4_fp8_mm"
    blocks, bases, reports = None, [], []
    for i, weights in enumerate(experts):
        try:
            ready = prepack(weights, for_op=op, allow_requant=allow_requant)
            packed = to_blocks(ready) if activations == "bf16" else to_folded_blocks(ready)
        except ValueError as error:
            raise ValueError(f"expert {i}: {error}") from error
        if blocks is None:
            blocks = packed.blocks.new_empty(len(experts), *packed.blocks.shape)
        blocks[i] = packed.blocks
        bases.append(packed.base)
        reports.append(ready.report)
    assert blocks is not None
    return PackedExperts(
        format=first.format,
        activations=activations,
        n=first.codes.shape[0],
        k=first.k,
        blocks=blocks,
        base=torch.stack(bases),
        reports=tuple(reports),
    )


@dataclass(frozen=True, kw_only=True)
class PackedGatedExperts:
    """Weights of a layer as `gemmill.fused_experts` takes them with a format."""

    w13: PackedExperts
    """The weights of gates and ups, each gate before its up."""
    w2: PackedExperts


ORDERS = ("gate_up", "up_gate", "interleaved")
"""Orders of rows of gates and ups: all gates first, all ups first, or each gate before its up."""


def prepack_gated_experts(
    w13: Sequence[BlockScaled],
    w2: Sequence[BlockScaled],
    *,
    order: str = "gate_up",
    w13_global_scales: Tensor | None = None,
    w2_global_scales: Tensor | None = None,
) -> PackedGatedExperts:
    """Pack the weights of a layer's experts for bf16 activations: w13 [2 I, K] of each, rows in `order`, and w2 [K, I].

    Global scales are float32, and divide. Those of w13 are [E], or [E, 2] of gates and of ups. Those of w2 are [E].
    They become part of the bases. Raises ValueError, in a sentence, for another order, for sizes that disagree, and as
    `prepack_experts`.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected {', '.join(map(repr, ORDERS[:-1]))} or {ORDERS[-1]!r}")
    if len(w13) != len(w2):
        raise ValueError(f"w13 has {len(w13)} experts and w2 has {len(w2)}: each expert has both")
    for i, (first, second) in enumerate(zip(w13, w2, strict=True)):
        (gates, k), (rows, inner) = (first.codes.shape[0], first.k), (second.codes.shape[0], second.k)
        if gates != 2 * inner or k != rows:
            raise ValueError(
                f"expert {i}: w13 is {gates} x {k} and w2 {rows} x {inner}, expected w13 of {2 * inner} x {rows} for this w2"
            )
    packed = prepack_experts([_woven(x, order) for x in w13]), prepack_experts(w2)
    return PackedGatedExperts(
        w13=_on_global_scales("w13", packed[0], w13_global_scales, 2),
        w2=_on_global_scales("w2", packed[1], w2_global_scales, 1),
    )


def _woven(weights: BlockScaled, order: str) -> BlockScaled:
    """Weights whose rows in `order` are put in turns: each gate before its up."""
    if order == "interleaved":
        return weights
    first, second = torch.arange(weights.codes.shape[0], device=weights.codes.device).chunk(2)
    rows = torch.stack((first, second) if order == "gate_up" else (second, first), dim=1).flatten()
    return BlockScaled(format=weights.format, codes=weights.codes[rows], scales=weights.scales[rows])


def _on_global_scales(name: str, packed: PackedExperts, scales: Tensor | None, kinds: int) -> PackedExperts:
    """Weights with bases divided by the global scales of each expert's `kinds` of rows, which take turns."""
    if scales is None:
        return packed
    count = len(packed.base)
    if scales.numel() not in (count, count * kinds):
        wanted = f"[{count}] or [{count}, {kinds}]" if kinds > 1 else f"[{count}]"
        raise ValueError(f"{name}_global_scales has shape {list(scales.shape)}, expected {wanted}")
    divisors = scales.to(packed.base.device, torch.float32).reshape(count, 1, -1)
    bases = (packed.base.view(count, -1, kinds) / divisors).view(count, -1)
    return replace(packed, base=bases)


def _check(experts: Sequence[BlockScaled], activations: str) -> None:
    if not experts:
        raise ValueError("there are no experts, expected the weights of one or more")
    if activations not in ACTIVATIONS:
        raise ValueError(f"activations are {activations!r}, expected {' or '.join(map(repr, ACTIVATIONS))}")
    first = experts[0]
    offered = (NVFP4, MXFP4) if activations == "bf16" else (MXFP4,)
    if first.format not in offered:
        raise ValueError(
            f"experts of {first.format} for {activations} activations, expected {' or '.join(map(str, offered))}"
        )
    for i, weights in enumerate(experts):
        found, wanted = ((x.format, list(x.codes.shape)) for x in (weights, first))
        if found != wanted:
            raise ValueError(
                f"expert {i} has codes of {found[0]} {found[1]} and expert 0 of {wanted[0]} {wanted[1]}: all are of one format and size"
            )
