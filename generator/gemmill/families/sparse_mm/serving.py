"""The sparse GEMMs' ops in the runtime: their CPU path, and the sentences for variants that a build lacks."""

from collections.abc import Iterator
from typing import Any

from gemmill.families.sparse_mm.reference import sparse_mm
from gemmill.families.sparse_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, none_takes


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    operands = {role: value for role, value in given.items() if role != "out"}
    try:
        yield given["out"], sparse_mm(**operands, out_dtype=given["out"].dtype)
    except ValueError as error:
        raise RuntimeError(f"{call.schema.name}: bt_meta is no 2:4 metadata: {error}") from None


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    asked = shaped_call_of(checks.check(op, call))
    sizes, operands = "M, N, K", "a, bt_nzs, bt_meta, out"
    return none_takes(manifest, asked, choice, kernels="sparse GEMMs", sizes=sizes, operands=operands, of_tma=True)


SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
