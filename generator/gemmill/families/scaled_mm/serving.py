"""The GEMM ops in the runtime."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gemmill.families.scaled_mm import reference
from gemmill.families.scaled_mm.problem import problem_of_call
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.runtime.library import Build
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, count_of_variants

MOST_REASONS = 20
"""In the text of a refused call."""


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    operands = {role: value for role, value in given.items() if role != "out"}
    yield given["out"], reference.scaled_mm(**operands, out_dtype=given["out"].dtype)


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    problem = problem_of_call(op, call)
    counts = Counter(rejected.reason for rejected in choice.trace)
    reasons = "\n".join(f"  {count_of_variants(count)}: {reason}" for reason, count in counts.most_common(MOST_REASONS))
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (problem.sizes, problem.alignments))
    return (
        f"no variant of build {build.build_id} takes M, N, K = {sizes} with alignments of a, b, out = {alignments} bytes; "
        f"`gemmill build --arch {build.manifest.arch} --select default` builds one for every shape\n{reasons}"
    )


SERVING = Serving(results=_results, asked=lambda call: problem_of_call(call.schema, call.call), lacks=_lacks)
