"""The op in the runtime."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gemmill.families.fused_experts.packing import PACKINGS, Packing
from gemmill.families.fused_experts.reference import Layer, fused_experts
from gemmill.families.fused_experts.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.formats.folded_blocks import FoldedBlocks
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.sparse_blocks import SparseFp4Blocks
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, none_takes
from gemmill.vocab.activation import Activation

_OF_WORD = {activation.spelled: activation for activation in Activation}
_WRITTEN = ("out", "workspace", "adds")


def layer_of(given: dict[str, Any]) -> Layer:
    """The operands of a legal call. Scales of experts become those of rows; packed weights are decoded."""
    operands = {name: value for name, value in given.items() if name not in _WRITTEN}
    if "format" in given:
        return _packed_layer(operands)
    for name in ("w13", "w2"):
        weights, scales = given[name], given[f"{name}_scales"]
        if (
            scales is not None
            and scales.numel() in (weights.shape[0], weights.shape[0] * weights.shape[1])
            and not _has_blocks(given)
        ):
            rows = scales.reshape(weights.shape[0], -1)
            operands[f"{name}_scales"] = rows.expand(weights.shape[:2]).contiguous()
    return Layer(**operands | {"activation": _OF_WORD[given["activation"]]})


def _packed_layer(given: dict[str, Any]) -> Layer:
    """The operands of a call with packed weights, decoded."""
    packing = PACKINGS[given.pop("format")]
    columns = given["x"].shape[1], given["w13_scales"].shape[1] // 2
    for name, k in zip(("w13", "w2"), columns, strict=True):
        bases = given[f"{name}_scales"]
        given[name] = torch.stack(
            [_decoded(blocks, base, packing, k) for blocks, base in zip(given[name], bases, strict=True)]
        )
        given[f"{name}_scales"] = None
    return Layer(**given | {"activation": _OF_WORD[given["activation"]], "is_folded": packing.is_coded})


def _decoded(blocks: Tensor, base: Tensor, packing: Packing, k: int) -> Tensor:
    """One expert's decoded weights, float64 [rows, K]."""
    n = len(base)
    if packing.is_coded:
        return FoldedBlocks(format=packing.format, n=n, k=k, blocks=blocks, base=base).values()
    if packing.sparse_group:
        values = SparseFp4Blocks(n=n, k=k, group=packing.sparse_group, blocks=blocks, base=base).values()
    else:
        values = Fp4Blocks(format=packing.format, n=n, k=k, blocks=blocks, base=base).weights()[0].values()
    return values * base.double()[:, None]


def _has_blocks(given: dict[str, Any]) -> bool:
    scales, rows = given["w13_scales"], given["w13"].shape[1]
    return bool(scales.dim() == 3 and not (scales.shape[2] == 1 and scales.shape[1] == rows))


def _results(_call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    yield given["out"], fused_experts(layer_of(given), given["out"] if given["adds"] else None)
    if given.get("workspace") is not None:
        yield given["workspace"], given["workspace"]  # scratch bytes of kernels


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    asked = shaped_call_of(checks.check(op, call))
    sizes, operands = "pairs, inner, hidden, experts", "x, w13, w2"
    return none_takes(manifest, asked, choice, kernels="fused experts", sizes=sizes, operands=operands, of_tma=True)


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
