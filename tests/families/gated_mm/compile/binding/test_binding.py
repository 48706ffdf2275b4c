"""The extension's checks, choices and model of gated GEMMs against Python's, on CPU tensors."""

import ctypes
import random
from itertools import product

import pytest
import torch

from gemmill.families import gated_mm
from gemmill.families.gated_mm.config import Activation, Result, UnalignedGatedConfig
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.families.gated_mm.shaped_call import shaped_call_of
from gemmill.family import ShapedCall
from gemmill.fuzz.breakages import break_call, draw_call
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import model_ns, select
from gemmill.vocab import DType

pytestmark = pytest.mark.compile
SMS, SMS_OF_NONE = 132, 1
"""Multiprocessors of a device, and what the extension takes for their number where there is no device."""
ROUNDS = 250


def test_both_refuse_the_same_calls_and_launch_the_same_kernels(probe) -> None:
    op = getattr(probe.ops, SCALED_MM_ACT_QUANT.name).default
    refused, launched, any_layout, in_groups = set(), set(), 0, 0
    for index in range(ROUNDS):
        call, breakage = draw_call(SCALED_MM_ACT_QUANT.name, 3, index, CPU_LIMITS)
        memory = Memory(call.slots, torch.device("cpu"))
        arguments = {
            name: memory.tensor(name) if name in call.slots else call.plain.get(name)
            for name in SCALED_MM_ACT_QUANT.arguments
        }
        if (
            breakage is not None
            and (broken := break_call(SCALED_MM_ACT_QUANT.name, arguments, memory, breakage)) is not None
        ):
            arguments = broken.arguments
        given = list(arguments.values())
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in given):
            continue  # which torch refuses itself where an op has no fake
        try:
            judged = check(SCALED_MM_ACT_QUANT, of_arguments(SCALED_MM_ACT_QUANT, given))
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                op(*given)
            assert str(error) in str(caught.value)
            refused.add(str(error))
            continue
        if judged["M"] * judged["N"] == 0:
            continue
        choice = select(probe.build.table, shaped_call_of(judged), SMS_OF_NONE)
        if judged["in_groups"] and choice.row < 0:  # of these alone some have no kernel
            with pytest.raises(RuntimeError, match="--select sweep` builds"):
                op(*given)
            continue
        assert choice.row >= 0, "no legal call may fail"
        op(*given)
        entry = probe.build.table.entries[choice.row]
        assert probe.number("probe_symbol", ctypes.c_char * 512).value.decode() == entry.symbol
        launched.add(
            (
                entry.config.operand_dtype,
                entry.config.epilogue.result,
                given[SCALED_MM_ACT_QUANT.arguments.index("activation")],
            )
        )
        assert entry.config.group_size == (128 if judged["in_groups"] else 0)
        in_groups += judged["in_groups"]
        any_layout += isinstance(entry.config, UnalignedGatedConfig)
    assert len(refused) > 5 and len(launched) == 24, "a class of calls was never launched"
    assert any_layout > 5 and in_groups > 5


@pytest.mark.parametrize("name", EXPERT_NAMES)
def test_both_agree_on_calls_of_experts(probe, name: str) -> None:
    op, schema = getattr(probe.ops, name).default, BY_NAME[name]
    refused, launched, lacking = set(), set(), 0
    for index in range(2 * ROUNDS):
        call, breakage = draw_call(name, 5, index, CPU_LIMITS)
        memory = Memory(call.slots, torch.device("cpu"))
        arguments = {key: memory.tensor(key) if key in call.slots else call.plain.get(key) for key in schema.arguments}
        if breakage is not None and (broken := break_call(name, arguments, memory, breakage)) is not None:
            arguments = broken.arguments
        given = list(arguments.values())
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in given):
            continue  # which torch refuses itself where an op has no fake
        try:
            judged = check(schema, of_arguments(schema, given))
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                op(*given)
            assert str(error) in str(caught.value)
            refused.add(str(error))
            continue
        if judged["M"] * judged["N"] * judged["experts"] == 0:
            continue
        choice = select(probe.build.table, shaped_call_of(judged), SMS_OF_NONE)
        if choice.row < 0:
            with pytest.raises(RuntimeError, match="--select sweep` builds"):
                op(*given)
            lacking += 1
            continue
        op(*given)
        entry = probe.build.table.entries[choice.row]
        assert probe.number("probe_symbol", ctypes.c_char * 512).value.decode() == entry.symbol
        x, epilogue = entry.config.operands, entry.config.epilogue
        assert x.by_expert and x.group_size == (128 if judged["in_groups"] else 0)
        launched.add((x.dtype, epilogue.result, epilogue.activation, x.group_size))
    often = set(product((DType.E4M3,), Result, (Activation.SILU, Activation.SWIGLU), (0, 128)))
    often |= set(product((DType.S8,), Result, (Activation.SILU, Activation.SWIGLU), (0,)))
    assert len(refused) > 5 and often <= launched and lacking > 3


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
