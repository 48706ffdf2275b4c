"""The sparse GEMMs' ops in the runtime: their CPU path, and the sentences for variants that a build lacks."""

from collections.abc import Iterator
from typing import Any

from gemmill.families.sparse_mm.reference import sparse_mm
from gemmill.families.sparse_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.runtime import checks
from gemmill.runtime.library import Build
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, count_of_variants


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    operands = {role: value for role, value in given.items() if role != "out"}
    try:
        yield given["out"], sparse_mm(**operands, out_dtype=given["out"].dtype)
    except ValueError as error:
        raise RuntimeError(f"{call.schema.name}: bt_meta is no 2:4 metadata: {error}") from None


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    asked = shaped_call_of(checks.check(op, call))
    sizes, alignments = (", ".join(map(str, numbers)) for numbers in (asked.sizes, asked.alignments))
    count = sum(entry.family == asked.family for entry in build.manifest.entries)
    reason = choice.trace[0].reason if choice.trace else "it has none"
    return (
        f"none of {count_of_variants(count)} of sparse GEMMs in build {build.build_id} takes M, N, K = {sizes} with alignments of "
        f"a, bt_nzs, bt_meta, out = {alignments} bytes ({reason}); rows must begin at multiples of 16 bytes, and `gemmill build "
        f"--arch {build.manifest.arch} --select default` builds the kernels that there are"
    )


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
