"""Calls of the quantisation ops, for tests, fuzzing, `gemmill explain` and measurements."""

from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant.cases.asked import asked
from gemmill.families.quant.cases.calls import differences, of_config, once, same_bits, sized
from gemmill.families.quant.cases.drawn import drawn
from gemmill.numerics.call import LegalCall
from gemmill.numerics.cases import Cases
from gemmill.numerics.memory import Memory
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME

LACKS = (": build ", " lacks ")
"""Words in the text of an op whose variant the build lacks."""


class QuantJudge:
    """The judge of one random call, by the reference's results for operands in dense memory of their own.

    The op's strides differ from the reference's: both must give the same.
    """

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._call, self._memory, self._op = call, memory, BY_NAME[call.op]
        given = {name: memory.dense(name, before) for name in call.slots}
        self._wanted: dict[str, Any] = dict.fromkeys(self._op.arguments) | dict(call.plain) | given
        by_reference(self._op, [self._wanted[name] for name in self._op.arguments])

    def wrong(self) -> Tensor:
        """How many elements are not the reference's bits. For ops whose codes may be a step off, `report` has the last
        word."""
        counts = [
            (~same_bits(self._memory.dense(name), self._wanted[name])).sum()
            for name, slot in self._call.slots.items()
            if slot.written
        ]
        return torch.stack(counts).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        got = dict.fromkeys(self._op.arguments) | dict(self._call.plain)
        got |= {name: self._memory.dense(name) for name in self._call.slots}
        names = self._op.arguments
        return differences(self._op, [got[name] for name in names], [self._wanted[name] for name in names])


CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=QuantJudge,
    counts_are_final=False,
    is_lacking=lambda _call, text: all(words in text for words in LACKS),
)
