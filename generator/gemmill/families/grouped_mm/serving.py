"""The ops in the runtime."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gemmill.families.grouped_mm.config import FP4_FORMATS
from gemmill.families.grouped_mm.reference import Segment, gathered, packed_exact_mm, segment_mm, segments, unpacked
from gemmill.families.grouped_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, none_takes


@dataclass(frozen=True, kw_only=True)
class Part:
    """The operands of one expert's rows, and where their result belongs."""

    out: Tensor
    a: Tensor
    b: Tensor
    a_scales: Tensor | None
    """None where operands have 16 bits."""
    b_scales: Tensor | None
    alpha: Tensor | None
    """One value; None for 1."""
    bias: Tensor | None
    """[N]"""


@dataclass(frozen=True, kw_only=True)
class PackedPart:
    """The operands of one expert's rows with packed weights, whose values have all scales in them."""

    out: Tensor
    a: Tensor
    """Rows of A, float64 [M, K]."""
    b: Tensor
    """The weights, float64 [N, K]."""
    bias: Tensor | None


def packed_parts_of(call: Judged, given: dict[str, Any]) -> Iterator[PackedPart]:
    """The parts of a legal call with packed weights."""
    slot, ids, alpha, bias = call["slot"], given.get("token_ids"), given.get("alpha"), given.get("bias")
    format, a_scales = FP4_FORMATS[call["packed"] - 1], given["a_scales"]
    a = given["a"].reshape(-1, call["K"]).double()
    if a_scales is not None:
        a = a * a_scales.reshape(-1, 1).double()
    if ids is not None:
        a = gathered(a, ids)
    out = given["out"]
    for span in segments(
        given["expert_offsets"], call["M"], call["weights"], slot=slot, expert_map=given.get("expert_map")
    ):
        index: Any = slice(span.begin, span.end)
        which = span.weights
        b = unpacked(given["b"][which], given["b_scales"][which], format, call["K"], folded=bool(call["scaled"]))
        yield PackedPart(
            out=out[(span.begin // slot, slice(0, span.end - span.begin)) if slot else index],
            a=a[index],
            b=b if alpha is None else b * alpha.reshape(-1)[which].double(),
            bias=None if bias is None else bias[which],
        )


def parts_of(call: Judged, given: dict[str, Any]) -> Iterator[Part]:
    """The parts of a legal call."""
    slot, ids, alpha, bias = call["slot"], given.get("token_ids"), given.get("alpha"), given.get("bias")
    a, a_scales, b_scales = given["a"], given["a_scales"], given["b_scales"]
    if b_scales is not None and call["groups"] == 0:
        a_scales = a_scales if slot else a_scales.reshape(-1)
        b_scales = b_scales.reshape(call["weights"], -1)
    if ids is not None:
        if a_scales is not None:
            a_scales = gathered(a_scales.expand(len(a), *a_scales.shape[1:]), ids)
        a = gathered(a, ids)
    for span in segments(
        given["expert_offsets"], call["M"], call["weights"], slot=slot, expert_map=given.get("expert_map")
    ):
        index: Any = slice(span.begin, span.end)
        if slot:
            index = (span.begin // slot, slice(0, span.end - span.begin))
        yield Part(
            out=given["out"][index],
            a=a[index],
            b=given["b"][span.weights],
            a_scales=None if a_scales is None else _scales_of(a_scales, call, span, index),
            b_scales=None if b_scales is None else b_scales[span.weights],
            alpha=None if alpha is None else alpha.reshape(-1)[span.weights],
            bias=None if bias is None else bias[span.weights],
        )


def _scales_of(a_scales: Tensor, call: Judged, span: Segment, index: Any) -> Tensor:
    if call["groups"]:
        part: Tensor = a_scales[index]
        return part
    return a_scales.reshape(-1)[span.begin : span.end] if a_scales.numel() > 1 else a_scales.reshape(1)


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    nothing = given["out"][:0]
    yield nothing, nothing  # a call counts as a write, of experts without rows too
    if call.get("packed"):
        for packed in packed_parts_of(call, given):
            yield packed.out, packed_exact_mm(packed.a, packed.b, packed.bias).float().to(packed.out.dtype)
        return
    for part in parts_of(call, given):
        scales = part.a_scales, part.b_scales
        yield part.out, segment_mm(part.a, part.b, *scales, part.out.dtype, part.alpha, part.bias)


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    asked = shaped_call_of(checks.check(op, call))
    sizes, operands = "M, N, K, experts", "a, b, out"
    return none_takes(manifest, asked, choice, kernels="grouped GEMMs", sizes=sizes, operands=operands)


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
