"""4-bit weights of all experts of a layer in one tensor, in the order in which grouped kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.quantize.report import PrepackReport
from gemmill.vocab.format import MXFP4, NVFP4, Format

ACTIVATIONS = ("bf16", "e4m3")
"""That packed weights are multiplied by."""


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
    """f32 [E, N]: what rows of weights are multiplied by."""
    reports: tuple[PrepackReport, ...]
    """Of each expert."""


def prepack_experts(
    experts: Sequence[BlockScaled], *, activations: str = "bf16", allow_requant: bool = False
) -> PackedExperts:
    """Weights [N, K] of each expert, of one format and size, packed one after another; the input is not changed.

    activations: "bf16" of nvfp4 and mxfp4; "e4m3" of mxfp4, whose scales then fold into the weights exactly. allow_requant: as of
    `gemmill.quantize.prepack.prepack`. A global scale is no part of this: its inverse is the expert's alpha.

    Raises ValueError, in a sentence, for no experts, for such as differ, for what does not go together, and for a row whose
    scales spread too far, by its expert and number.
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
