"""The extension's checks, choices and launches of sparse GEMMs against Python's, on CPU tensors."""

import random

import pytest

from compile.binding.drawn import compare
from gemmill.families import sparse_mm
from gemmill.families.sparse_mm.ops import NAMES
from gemmill.families.sparse_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, Row, ShapedCall
from gemmill.runtime.choosing import model_ns

pytestmark = pytest.mark.compile
SMS = 132
"""Multiprocessors of a device."""
ROUNDS = 250
POINTERS = {
    "a": "a",
    "values": "bt_nzs",
    "meta": "bt_meta",
    "d": "out",
    "a_scales": "a_scales",
    "b_scales": "b_scales",
    "bias": "bias",
    "azp_adj": "azp_adj",
    "azp": "azp",
}
STRIDES = {"lda": "a", "ldv": "bt_nzs", "ldd": "out"}


def wanted_of(call: Judged, row: Row) -> dict[str, int | None]:
    """Every field of a kernel's arguments, from the call."""

    def data(role: str) -> int | None:
        return None if call.get(role) is None else call.tensor(role).data or None

    def stride(role: str) -> int:
        x = call.tensor(role)
        step = 16 // x.element_bytes
        return x.strides[0] if x.shape[0] > 1 else -(-x.shape[1] // step) * step

    numbers = {
        "m": call["M"],
        "n": call["N"],
        "k": call["K"],
        "kept": call.tensor("bt_nzs").shape[1],
        "a_scale_per_row": int(call.tensor("a_scales").numel > 1),
        "b_scale_per_column": int(call.tensor("b_scales").numel > 1),
        "raster_order": row.facts.raster_order,
        "swizzle": row.facts.swizzle,
    }
    pointers = {name: data(role) for name, role in POINTERS.items()}
    return pointers | {name: stride(role) for name, role in STRIDES.items()} | numbers


@pytest.mark.parametrize("op", NAMES)
def test_both_refuse_the_same_calls_and_launch_the_same_kernels(op: str, probe) -> None:
    found = compare(probe, op, shaped_call_of, wanted_of, rounds=ROUNDS)
    assert len(found.refused) > 5
    assert len(found.lacking) > 5
    assert len(found.launched) > 50


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(sparse_mm.NAME)]
    assert len({row.facts for _, row in rows}) > 5
    for _ in range(500):
        i, row = rng.choice(rows)
        sizes = tuple(rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(3))
        call = ShapedCall(family=sparse_mm.NAME, call_class=row.call_class, sizes=sizes, alignments=(16,) * 4)
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)
