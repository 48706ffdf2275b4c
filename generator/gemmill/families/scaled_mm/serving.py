"""The GEMM ops in the runtime."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gemmill.families.scaled_mm import reference
from gemmill.families.scaled_mm.classes import class_of
from gemmill.families.scaled_mm.own import BUILT_IN, class_of_epilogue
from gemmill.families.scaled_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema, ShapedCall
from gemmill.family.operand import Call
from gemmill.gemm.traced import Traced, all_known
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, count_of_variants

MOST_REASONS = 32
"""The most reasons in the text of a refused call."""


def _asked(call: Judged) -> ShapedCall:
    return shaped_call_of(call.schema, call.call, call.get("own") or 0)


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    if own := call.get("own"):
        yield given["out"], reference.own_mm(_epilogue(own), given)
        return
    operands = {role: value for role, value in given.items() if role != "out"}
    yield given["out"], reference.scaled_mm(**operands, out_dtype=given["out"].dtype)


def _epilogue(number: int) -> Traced:
    return next(traced for traced in all_known() if class_of_epilogue(traced) == number)


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    asked = _asked(checks.check(op, call))
    counts = Counter(rejected.reason for rejected in choice.trace)
    reasons = "\n".join(f"  {count_of_variants(count)}: {reason}" for reason, count in counts.most_common(MOST_REASONS))
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (asked.sizes, asked.alignments))
    builds = f"`gemmill build --arch {manifest.arch} --select default` builds one for every shape"
    if own := class_of(asked.call_class).own:
        with_it = f"`gemmill build --arch {manifest.arch} --epilogue MODULE:FUNCTION`"
        if _epilogue(own).key in BUILT_IN:
            with_it = f"`gemmill build --arch {manifest.arch} --select default`"
        builds = (
            f"{with_it} builds those of an epilogue, which take K above 0 and rows and columns at multiples of 16 bytes"
        )
    return (
        f"no variant of build {manifest.build_id} takes M, N, K = {sizes} with a, b, out aligned to {alignments} bytes; "
        f"{builds}\n{reasons}"
    )


SERVING = Serving(results=_results, asked=_asked, lacks=_lacks)
