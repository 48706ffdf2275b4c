"""The GEMM ops in the runtime."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gemmill.families.scaled_mm import reference
from gemmill.family import OpSchema
from gemmill.family.operand import Call
from gemmill.runtime import checks, operands
from gemmill.runtime.library import Build
from gemmill.runtime.problem import problem_of_call
from gemmill.runtime.select import Choice, select
from gemmill.runtime.serving import Serving, count_of_variants

MOST_REASONS = 20
"""In the text of a refused call."""


def _on_cpu(op: OpSchema, arguments: Sequence[Any]) -> None:
    checks.check(op, operands.of_arguments(op, arguments))
    given = dict(zip(op.arguments, arguments, strict=True))
    out = given.pop("out")
    out.copy_(reference.scaled_mm(**given, out_dtype=out.dtype))


def _choose(build: Build, op: OpSchema, call: Call, sm_count: int) -> Choice:
    return select(build.table, problem_of_call(op, call), sm_count, build.pinned_name())


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    problem = problem_of_call(op, call)
    counts = Counter(rejected.reason for rejected in choice.trace)
    reasons = "\n".join(f"  {count_of_variants(count)}: {reason}" for reason, count in counts.most_common(MOST_REASONS))
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (problem.sizes, problem.alignments))
    return (
        f"no variant of build {build.build_id} takes M, N, K = {sizes} with alignments of a, b, out = {alignments} bytes; "
        f"`gemmill build --arch {build.manifest.arch} --select default` builds one for every shape\n{reasons}"
    )


SERVING = Serving(on_cpu=_on_cpu, choose=_choose, lacks=_lacks)
