"""The extension's checks, choices and launches of grouped GEMMs against Python's, on CPU tensors."""

import ctypes
import random
from typing import Any

import pytest
import torch

from gemmill.families import moe
from gemmill.families.moe.config import FP4_PAIRS, SCALE_GROUPS, UnalignedGroupedConfig
from gemmill.families.moe.ops import NAMES
from gemmill.families.moe.packed_ops import FP4_NAMES
from gemmill.families.moe.shaped_call import shaped_call_of
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
ROUNDS = 300
_POINTERS = "a b d a_scales b_scales offsets expert_map token_ids".split()
_STRIDES = "a_scale_stride_m a_scale_stride_k b_scale_stride_n b_scale_stride_k b_scale_stride_expert".split()
_ENDS = ("alpha", "bias")
_NUMBERS = "m n k tokens experts weights slot offset_words id_words a_scale_per_row b_scale_per_column".split()


class Arguments(ctypes.Structure):
    """Mirrors `gemmill_grouped_mm_args` in kernels/moe/abi.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in "lda ldb ldd b_stride_expert".split()),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        *((name, ctypes.c_int64) for name in _STRIDES),
        *((name, ctypes.c_void_p) for name in _ENDS),
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


def wanted_of(call: Judged) -> dict[str, int | None]:
    """What a kernel is given, by what the call says; of strides those that are read."""

    def data(role: str) -> int | None:
        return None if call.get(role) is None else call.tensor(role).data or None

    def words(role: str) -> int:
        return 2 if call.get(role) is not None and call.tensor(role).dtype == "int64" else 1

    roles = {"d": "out", "offsets": "expert_offsets"}
    found: dict[str, int | None] = {name: data(roles.get(name, name)) for name in (*_POINTERS, *_ENDS)}
    found |= {name: call[size] for name, size in (("m", "M"), ("n", "N"), ("k", "K"))}
    found |= {name: call[name] for name in ("tokens", "experts", "weights", "slot")}
    found |= {"offset_words": words("expert_offsets"), "id_words": words("token_ids")}
    found |= {f"ld{x}": call.tensor(role).row_stride for x, role in (("a", "a"), ("b", "b"), ("d", "out"))}
    found["b_stride_expert"] = call["N"] * call.tensor("b").row_stride
    found |= {"a_scale_per_row": 0, "b_scale_per_column": 0}
    if call.get("packed"):
        found["b_stride_expert"] = call.tensor("b").numel // call["weights"]
        found["a_scale_per_row"] = int(call["scaled"] and call.tensor("a_scales").numel > 1)
        found |= {"b_scale_per_column": 1, "b_scale_stride_expert": call["N"]}
    elif call["scaled"] and call["groups"]:
        a_scales, b_scales = call.tensor("a_scales"), call.tensor("b_scales")
        *_, of_rows, of_k = a_scales.strides
        found |= dict(
            zip(("b_scale_stride_expert", "b_scale_stride_n", "b_scale_stride_k"), b_scales.strides, strict=True)
        )
        if a_scales.shape[-2] > 1:
            found["a_scale_stride_m"] = of_rows
        found["a_scale_stride_k"] = of_k
    elif call["scaled"]:
        found["a_scale_per_row"] = int(call.tensor("a_scales").numel > 1)
        found["b_scale_per_column"] = int(call.tensor("b_scales").numel > call["weights"])
        found["b_scale_stride_expert"] = call["N"] if found["b_scale_per_column"] else 1
    return found


@pytest.mark.parametrize("op", (*NAMES, *FP4_NAMES))
def test_both_refuse_the_same_calls_and_launch_the_same_kernels(op: str, probe) -> None:
    refused, seen, kinds = set(), {"launched": 0, "any layout": 0}, set()
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
        if judged["M"] * judged["N"] * judged["weights"] * judged["experts"] == 0:
            assert launched(probe, op, given) is None
            continue
        choice = select(probe.build.table, shaped_call_of(judged), SMS_OF_NONE)
        if op in FP4_NAMES and choice.row < 0:  # rows of a that TMA does not take
            with pytest.raises(RuntimeError, match="none of"):
                getattr(probe.ops, op).default(*given)
            continue
        assert choice.row >= 0, "no legal call may fail"
        symbol, args = launched(probe, op, given)
        entry = probe.build.table.entries[choice.row]
        assert symbol == entry.symbol
        for name, value in wanted_of(judged).items():
            assert getattr(args, name) == value, name
        seen["launched"] += 1
        seen["any layout"] += isinstance(entry.config, UnalignedGroupedConfig)
        x = entry.config
        kinds.add((x.operand_dtype, x.scale_groups, x.format, arguments.get("token_ids") is not None))
    assert len(refused) > 5
    assert seen["any layout"] > 5 or op in FP4_NAMES
    assert seen["launched"] > 50
    of_order = len(FP4_PAIRS) if op in FP4_NAMES else 4 + len(SCALE_GROUPS)
    assert len(kinds) == (2 if "token_ids" in BY_NAME[op].arguments else 1) * of_order, (
        "a kind of operands was never launched"
    )


def test_the_stride_of_a_slot_of_one_is_never_used(probe) -> None:
    """Scales of rows go from one expert's to the next one's."""
    op = "grouped_mm_masked"
    call = dict.fromkeys(BY_NAME[op].arguments) | {
        "out": torch.zeros(3, 1, 128, dtype=torch.bfloat16),
        "a": torch.zeros(3, 1, 256).to(torch.float8_e4m3fn),
        "b": torch.zeros(3, 128, 256).to(torch.float8_e4m3fn),
        "a_scales": torch.ones(16).as_strided((3, 1, 2), (5, 77, 1)),
        "b_scales": torch.ones(3, 1, 2),
        "rows": torch.ones(3, dtype=torch.int32),
        "expected_rows": 0,
    }
    _, found = launched(probe, op, [*call.values()])
    assert (found.a_scale_stride_m, found.a_scale_stride_k) == (5, 1)


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(moe.NAME)]
    for i, row in rows:  # of an expert with 16 tiles, from which on bands are swept
        sizes = (64 * row.facts.tile_m // 5, 4096, 4096, 1)
        call = ShapedCall(family=moe.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16))
        assert probe.nanoseconds(i, call, SMS) == model_ns(row, call, SMS)
    for _ in range(500):
        i, row = rng.choice(rows)
        sizes = (rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(3))
        call = ShapedCall(
            family=moe.NAME, call_class=row.call_class, sizes=(*sizes, rng.randrange(1, 513)), alignments=(16, 16, 16)
        )
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)
