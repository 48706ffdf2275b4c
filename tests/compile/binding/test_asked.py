"""The inputs of a choice, as the binding of each family derives them from a call, against Python's: class, sizes, alignments."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gemmill.family import Judged
from gemmill.fuzz.breakages import draw_call
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.choosing import Trust
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME, OPS, OpSchema
from gemmill.runtime.serving import serving_of

ROUNDS = 120


def drawn(op: OpSchema) -> Iterator[tuple[Memory, list[Any], Judged]]:
    """Legal calls, with the memory that their tensors lie in."""
    for index in range(ROUNDS):
        call, breakage = draw_call(op.name, 5, index, CPU_LIMITS)
        memory = Memory(call.slots, torch.device("cpu"))
        given = [memory.tensor(name) if name in call.slots else call.plain.get(name) for name in op.arguments]
        if breakage is None:
            yield memory, given, check(BY_NAME[op.name], of_arguments(op, given))


@pytest.mark.parametrize("family", [family.name for family in REGISTRY.families if family.tuning.sizes])
def test_a_choice_is_asked_for_the_same(family: str, probe) -> None:
    """Choices are noted where they are made, and neither where they are remembered nor where no variant fits."""
    noted = 0
    probe.build.note_choices(1, Trust.MODEL)
    try:
        for op in (op for op in OPS if REGISTRY.ops[op.name][0].name == family):
            for _, given, judged in drawn(op):
                try:
                    getattr(probe.ops, op.name).default(*given)
                except RuntimeError as error:
                    assert any(text in str(error) for text in ("none of ", "no variant of build ", " lacks sm90a_"))
                for choice in probe.build.take_noted(1):
                    if choice.call.family != family:  # grouped GEMMs of experts choose for themselves
                        continue
                    noted += 1
                    assert choice.call == serving_of(op).asked(judged), op.name
    finally:
        probe.build.note_choices(0)
    assert noted > 10
