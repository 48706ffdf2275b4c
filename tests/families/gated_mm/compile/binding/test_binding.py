"""The extension's checks, choices and model of gated GEMMs against Python's, on CPU tensors."""

import random
from itertools import product

import pytest

from compile.binding.drawn import compare
from gemmill.families import gated_mm
from gemmill.families.gated_mm.classes import RESULTS
from gemmill.families.gated_mm.config import Activation, Result, UnalignedGatedConfig
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.families.gated_mm.shaped_call import shaped_call_of
from gemmill.family import ShapedCall
from gemmill.runtime.choosing import model_ns
from gemmill.vocab import DType

pytestmark = pytest.mark.compile
SMS = 132
"""Multiprocessors of a device."""
ROUNDS = 250
KINDS = ((0, False), (128, False), (32, False), (32, True))
"""group_size and rows_scaled of a kernel, by a call's in_groups."""


def stored(result: Result) -> Result:
    """A result as classes of calls tell it: in groups of whatever size."""
    return Result.GROUP if result.group else result


def test_both_refuse_the_same_calls_and_launch_the_same_kernels(probe) -> None:
    op = SCALED_MM_ACT_QUANT.name
    found = compare(probe, op, shaped_call_of, rounds=ROUNDS, lacking="--select sweep` builds")
    assert all(judged["in_groups"] for judged in found.lacking), "of these alone some have no kernel"
    kinds, any_layout, in_groups = set(), 0, 0
    for entry, judged in found.launched:
        config = entry.config
        kinds.add((config.operand_dtype, stored(config.epilogue.result), judged["activation_index"]))
        assert (config.group_size, config.rows_scaled) == KINDS[judged["in_groups"]]
        in_groups += judged["in_groups"]
        any_layout += isinstance(config, UnalignedGatedConfig)
    assert len(found.refused) > 5 and len(kinds) == 24, "a class of calls was never launched"
    assert any_layout > 5 and in_groups > 5


@pytest.mark.parametrize("op", EXPERT_NAMES)
def test_both_agree_on_calls_of_experts(probe, op: str) -> None:
    sizes, lacking = ("M", "N", "experts"), "--select sweep` builds"
    found = compare(probe, op, shaped_call_of, rounds=2 * ROUNDS, sizes=sizes, seed=5, lacking=lacking)
    kinds = set()
    for entry, judged in found.launched:
        x, epilogue = entry.config.operands, entry.config.epilogue
        assert x.by_expert and (x.group_size, x.rows_scaled) == KINDS[judged["in_groups"]]
        activation = [*Activation][judged["activation_index"]]
        kinds.add((x.dtype, stored(epilogue.result), activation, x.group_size))
    often = set(product((DType.E4M3,), RESULTS, (Activation.SILU, Activation.SWIGLU), (0, 128)))
    often |= set(product((DType.S8,), RESULTS, (Activation.SILU, Activation.SWIGLU), (0,)))
    assert len(found.refused) > 5 and often <= kinds and len(found.lacking) > 3


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(gated_mm.NAME)]
    for _ in range(500):
        i, row = rng.choice(rows)
        m, n, k = (rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(3))
        experts = rng.choice((0, 1, 8, 128))
        sizes = (m, 32 * n, k, experts)
        call = ShapedCall(family=gated_mm.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16))
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)
