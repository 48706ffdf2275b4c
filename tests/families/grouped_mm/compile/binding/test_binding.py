"""The extension's checks, choices and launches of grouped GEMMs against Python's, on CPU tensors."""

import random

import pytest
import torch

from compile.binding.drawn import compare
from gemmill.families import grouped_mm
from gemmill.families.grouped_mm.config import FP4_PAIRS, SCALE_GROUPS, UnalignedGroupedConfig
from gemmill.families.grouped_mm.ops import NAMES
from gemmill.families.grouped_mm.packed_ops import FP4_NAMES
from gemmill.families.grouped_mm.shaped_call import shaped_call_of
from gemmill.family import Judged, Row, ShapedCall
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.schemas import BY_NAME

pytestmark = pytest.mark.compile
SMS = 132
"""Multiprocessors of a device."""
ROUNDS = 300
POINTERS = "a b d a_scales b_scales offsets expert_map token_ids alpha bias".split()


def wanted_of(call: Judged, row: Row) -> dict[str, int | None]:
    """A kernel's arguments, from the call; of strides those that it reads."""

    def data(role: str) -> int | None:
        return None if call.get(role) is None else call.tensor(role).data or None

    def words(role: str) -> int:
        return 2 if call.get(role) is not None and call.tensor(role).dtype == "int64" else 1

    roles = {"d": "out", "offsets": "expert_offsets"}
    found: dict[str, int | None] = {name: data(roles.get(name, name)) for name in POINTERS}
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
    found = compare(
        probe,
        op,
        shaped_call_of,
        wanted_of,
        rounds=ROUNDS,
        sizes=("M", "N", "weights", "experts"),
        lacking="none of",
        every_field=False,
    )
    kinds = {
        (x.operand_dtype, x.scale_groups, x.format, judged.get("token_ids") is not None)
        for x, judged in ((entry.config, judged) for entry, judged in found.launched)
    }
    assert len(found.refused) > 5
    if op not in FP4_NAMES:
        assert not found.lacking, "no legal call may fail: only packed weights need rows of a that TMA takes"
        assert sum(isinstance(entry.config, UnalignedGroupedConfig) for entry, _ in found.launched) > 5
    assert len(found.launched) > 50
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
    _, found = probe.run(op, *call.values())
    assert (found.a_scale_stride_m, found.a_scale_stride_k) == (5, 1)


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(grouped_mm.NAME)]
    for i, row in rows:  # of an expert with 16 tiles, from which on bands are swept
        sizes = (64 * row.facts.tile_m // 5, 4096, 4096, 1)
        call = ShapedCall(family=grouped_mm.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16))
        assert probe.nanoseconds(i, call, SMS) == model_ns(row, call, SMS)
    for _ in range(500):
        i, row = rng.choice(rows)
        sizes = (rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(3))
        call = ShapedCall(
            family=grouped_mm.NAME,
            call_class=row.call_class,
            sizes=(*sizes, rng.randrange(1, 513)),
            alignments=(16, 16, 16),
        )
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)
