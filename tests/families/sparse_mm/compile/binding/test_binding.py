"""The extension's checks, choices and launches of sparse GEMMs against Python's, on CPU tensors."""

import ctypes
import random
from typing import Any

import pytest
import torch

from gemmill.families import sparse_mm
from gemmill.families.sparse_mm.ops import NAMES
from gemmill.families.sparse_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, ShapedCall
from gemmill.fuzz.breakages import break_call, draw_call
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import model_ns, select

pytestmark = pytest.mark.compile
SMS, SMS_OF_NONE = 132, 1
"""Multiprocessors of a device, and what the extension takes for their number where there is no device."""
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
NUMBERS = "m n k kept a_scale_per_row b_scale_per_column raster_order swizzle".split()


class Arguments(ctypes.Structure):
    """Mirrors `gemmill_sparse_mm_args` in kernels/sparse_mm/abi.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in STRIDES),
        *((name, ctypes.c_int32) for name in NUMBERS),
    )


def launched(probe, op: str, arguments: list[Any]) -> tuple[str, Arguments] | None:
    """The symbol of the kernel that a call launches, and what it is given; None if it launches none."""
    count = probe.number("probe_launches", ctypes.c_int32)
    count.value = 0
    getattr(probe.ops, op).default(*arguments)
    if count.value == 0:
        return None
    size = ctypes.sizeof(Arguments)
    recorded = Arguments.from_buffer_copy(probe.number("probe_args", ctypes.c_ubyte * size))
    return probe.number("probe_symbol", ctypes.c_char * 512).value.decode(), recorded


def wanted_of(call: Judged, facts: Any) -> dict[str, int | None]:
    """Every field of what a kernel is given, by what the call says."""

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
        "raster_order": facts.raster_order,
        "swizzle": facts.swizzle,
    }
    pointers = {name: data(role) for name, role in POINTERS.items()}
    return pointers | {name: stride(role) for name, role in STRIDES.items()} | numbers


@pytest.mark.parametrize("op", NAMES)
def test_both_refuse_the_same_calls_and_launch_the_same_kernels(op: str, probe) -> None:
    refused, seen = set(), {"launched": 0, "lacking": 0}
    for index in range(ROUNDS):
        call, breakage = draw_call(op, 3, index, CPU_LIMITS)
        memory = Memory(call.slots, torch.device("cpu"))
        arguments = {
            name: memory.tensor(name) if name in call.slots else call.plain.get(name) for name in BY_NAME[op].arguments
        }
        if breakage is not None and (broken := break_call(op, arguments, memory, breakage)) is not None:
            arguments = broken.arguments
        given = list(arguments.values())
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in given):
            continue  # which torch refuses itself where an op has no fake
        try:
            judged = check(BY_NAME[op], of_arguments(BY_NAME[op], given))
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                getattr(probe.ops, op).default(*given)
            assert str(error) in str(caught.value)
            refused.add(str(error))
            continue
        if judged["M"] * judged["N"] == 0:
            assert launched(probe, op, given) is None
            continue
        choice = select(probe.build.table, shaped_call_of(judged), SMS_OF_NONE)
        if choice.row < 0:
            with pytest.raises(RuntimeError, match=r"none of \d+ variants? of "):
                getattr(probe.ops, op).default(*given)
            seen["lacking"] += 1
            continue
        symbol, args = launched(probe, op, given)
        assert symbol == probe.build.table.entries[choice.row].symbol
        wanted = wanted_of(judged, probe.build.table.rows[choice.row].facts)
        assert {name: getattr(args, name) for name, _ in Arguments._fields_} == wanted
        seen["launched"] += 1
    assert len(refused) > 5
    assert seen["lacking"] > 5
    assert seen["launched"] > 50


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
