"""The extension's checks and launches of routers against Python's, on CPU tensors."""

import pytest

from compile.binding.drawn import compare
from gemmill.families import routing
from gemmill.families.routing.classes import CLASSES
from gemmill.families.routing.ops import ROUTER_TOPK
from gemmill.family import Judged, Row, ShapedCall

pytestmark = pytest.mark.compile
POINTERS = ("x", "weight", "logits", "topk_weights", "topk_ids", "is_padding")
STRIDES = {"ldx": "x", "ldw": "weight", "ldl": "logits", "ld_weights": "topk_weights", "ld_ids": "topk_ids"}
NUMBERS = {"tokens": "M", "hidden": "K", "experts": "E", "topk": "topk", "renormalize": "renormalize"}


def shaped_call_of(call: Judged) -> ShapedCall:
    return CLASSES.of_call(routing.NAME, call["class"])


def wanted_of(call: Judged, _row: Row) -> dict[str, int | None]:
    """Every field of a kernel's arguments, from the call."""
    pointers = {name: None if call.get(name) is None else call.tensor(name).data or None for name in POINTERS}
    strides = {name: call.tensor(role).row_stride for name, role in STRIDES.items()}
    return pointers | strides | {name: call[of] for name, of in NUMBERS.items()}


def test_both_refuse_the_same_calls_and_launch_the_same_kernels(probe) -> None:
    found = compare(
        probe, ROUTER_TOPK.name, shaped_call_of, wanted_of, rounds=250, sizes="M", lacking="lacks sm90a_routing_f16"
    )
    assert len(found.refused) > 5
    assert len(found.launched) > 50
