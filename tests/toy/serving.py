"""Its ops in the runtime."""

from collections.abc import Iterator
from typing import Any

from gemmill.family import Judged, OpSchema, ShapedCall
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving
from toy.config import call_of
from toy.reference import pack


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    codes, peaks = pack(given["pages"], call["low"])
    yield given["codes"], codes
    yield given["peaks"], peaks.reshape(given["peaks"].shape)


def _asked(call: Judged) -> ShapedCall:
    pages = call.tensor("pages")
    bits = pages.data | 4 * call["pages_stride"] | 16
    return call_of({"length": call["length"], "page": call["page"]}, bits & -bits)


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    return f"no variant of build {manifest.build_id} packs such pages"


SERVING = Serving(results=_results, asked=_asked, lacks=_lacks)
