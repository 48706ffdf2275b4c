"""The op in the runtime."""

from collections.abc import Iterator
from typing import Any

from gemmill.families import routing
from gemmill.families.routing.classes import CLASSES
from gemmill.families.routing.config import HALVES, Operands, RoutingConfig
from gemmill.families.routing.reference import largest, logits_of
from gemmill.family import Judged, OpSchema, ShapedCall
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, lacks_one
from gemmill.space.names import to_name
from gemmill.vocab import Arch

_DTYPE_OF = {dtype.torch_name: dtype for dtype in HALVES}


def _results(call: Judged, given: dict[str, Any]) -> Iterator[Result]:
    logits = logits_of(given["x"], given["weight"]).to(given["x"].dtype)
    told = {"renormalize": given["renormalize"], "is_padding": given.get("is_padding")}
    weights, ids = largest(logits, given["topk_ids"].shape[1], **told)
    yield given["logits"], logits
    yield given["topk_weights"], weights
    yield given["topk_ids"], ids


def _asked(call: Judged) -> ShapedCall:
    return CLASSES.of_call(routing.NAME, call["class"])


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    operands = Operands(dtype=_DTYPE_OF[checks.check(op, call).tensor("x").dtype])
    wanted = RoutingConfig(operands=operands, arch=Arch(manifest.arch))
    return lacks_one(manifest, routing.NAME, to_name(wanted), kernels="routers")


SERVING = Serving(results=_results, asked=_asked, lacks=_lacks)
