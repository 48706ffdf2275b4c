"""The gated GEMMs' ops in the runtime: their CPU path, and the sentences for variants that a build lacks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gemmill.families.gated_mm import reference
from gemmill.families.gated_mm.classes import RESULTS
from gemmill.families.gated_mm.config import GROUP, Result
from gemmill.families.gated_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.formats.gating import group_codes, group_scales
from gemmill.formats.segments import gathered, segments
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result as Written
from gemmill.runtime.serving import Serving, none_takes
from gemmill.vocab.activation import Activation

OF_WORD = {activation.spelled: activation for activation in Activation}


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of one expert in a call."""

    index: Any
    """The index of these rows in out and in its scales."""
    rows: slice
    """The same rows, as numbered over all slots."""
    operands: dict[str, Tensor]
    """a, b, a_scales and b_scales, as the op without experts takes them."""


def parts_of(call: Judged, given: dict[str, Any]) -> Iterator[Part]:
    """The parts of a legal call, from its arguments by role."""
    slot, in_groups, ids = call["slot"], call["in_groups"], given.get("token_ids")
    a = given["a"].reshape(-1, call["K"])
    a_scales, b_scales = given["a_scales"], given["b_scales"]
    a_scales = a_scales.reshape(-1, call["scales_of_row"]) if in_groups else a_scales.reshape(-1)
    if ids is not None:
        a_scales = gathered(a_scales.expand(len(a), *a_scales.shape[1:]), ids)
        a = gathered(a, ids)
    b_scales = b_scales if in_groups else b_scales.reshape(call["weights"], -1)
    for span in segments(
        given["expert_offsets"], call["M"], call["weights"], slot=slot, expert_map=given.get("expert_map")
    ):
        rows = slice(span.begin, span.end)
        of_weights = b_scales[span.weights]
        operands = {
            "a": a[rows],
            "b": given["b"][span.weights].t(),
            "a_scales": a_scales if a_scales.shape == (1,) else a_scales[rows],
            "b_scales": of_weights.t() if in_groups else of_weights,
        }
        index: Any = (span.begin // slot, slice(0, span.end - span.begin)) if slot else rows
        yield Part(index=index, rows=rows, operands=operands)


def results_of(given: dict[str, Any], result: Result) -> dict[str, Any]:
    """The results of a call by name: out, and out_scales where results have scales."""
    values = reference.values(
        given["a"],
        given["b"],
        given["a_scales"],
        given["b_scales"],
        OF_WORD[given["activation"]],
        given["alpha"],
        given["limit"],
        given["beta"],
    )
    match result:
        case Result.BF16:
            return {"out": values.bfloat16()}
        case Result.STATIC:
            return {"out": reference.static_codes(values, given["static_scale"])}
    groups = reference.groups_of(given["b"], given["b_scales"])
    size = GROUP if groups is None else groups.size
    scales = group_scales(values, size)
    return {"out": group_codes(values, scales, size), "out_scales": scales}


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Written]:
    result = RESULTS[call["result"]]
    if call.get("of_experts"):
        for name in ("out", "out_scales"):  # a call counts as a write, where no expert has rows too
            if given[name] is not None:
                yield given[name][:0], given[name][:0]
        for part in parts_of(call, given):
            for name, value in results_of(given | part.operands, result).items():
                yield given[name][part.index], value
        return
    for name, value in results_of(given, result).items():
        yield given[name], value


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    judged = checks.check(op, call)
    of_experts = bool(judged.get("of_experts"))
    return none_takes(
        manifest,
        shaped_call_of(judged),
        choice,
        kernels="gated GEMMs",
        sizes="M, N, K, experts" if of_experts else "M, N, K",
        operands="a, b, out",
        selection="sweep" if judged["in_groups"] or of_experts else "default",
    )


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
