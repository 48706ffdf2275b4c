"""The op in the runtime."""

from collections.abc import Iterator
from typing import Any

from gemmill.families.gated_mm import reference
from gemmill.families.gated_mm.config import GROUP, Result
from gemmill.families.gated_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.formats.gating import group_codes, group_scales
from gemmill.runtime import checks
from gemmill.runtime.library import Build
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result as Written
from gemmill.runtime.serving import Serving, count_of_variants
from gemmill.vocab.activation import Activation

OF_WORD = {activation.spelled: activation for activation in Activation}


def results_of(given: dict[str, Any], result: Result) -> dict[str, Any]:
    """out, and out_scales where there are some."""
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
    scales = group_scales(values, GROUP)
    return {"out": group_codes(values, scales, GROUP), "out_scales": scales}


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Written]:
    for name, value in results_of(given, list(Result)[call["result"]]).items():
        yield given[name], value


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    judged = checks.check(op, call)
    asked, selection = shaped_call_of(judged), "sweep" if judged["in_groups"] else "default"
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (asked.sizes, asked.alignments))
    count = sum(entry.family == asked.family for entry in build.manifest.entries)
    reason = choice.trace[0].reason if choice.trace else "it has none"
    return (
        f"none of {count_of_variants(count)} of gated GEMMs in build {build.build_id} takes M, N, K = {sizes} with "
        f"alignments of a, b, out = {alignments} bytes ({reason}); `gemmill build --arch {build.manifest.arch} --select {selection}` "
        "builds those that there are"
    )


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
