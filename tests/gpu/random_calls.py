"""Calls as `gemmill fuzz` draws them, to be made in some other way than one after the other: padded with NaN, odd rows,
guards around every tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.fuzz.breakages import draw_call
from gemmill.numerics.call import CPU_LIMITS, LegalCall
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.runtime.schemas import BY_NAME


@dataclass(frozen=True, kw_only=True)
class Made:
    """A legal call with its memory."""

    call: LegalCall
    memory: Memory
    before: Tensor
    arguments: tuple[Any, ...]

    def make(self) -> None:
        """Call the op."""
        getattr(torch.ops.gemmill, self.call.op).default(*self.arguments)

    def fault(self) -> str:
        """Faults of the results or the memory around them; empty if there are none."""
        changed = self.memory.changed(self.before, written=True)
        if changed.any():
            return self.memory.places(changed)
        return cases_of_op(self.call.op).judge(self.call, self.memory, self.before).report()


def made(op: str, seed: int, index: int, pools: Pools, device: torch.device) -> Made:
    """The call of an op, a seed and an index, small."""
    call, _ = draw_call(op, seed, index, CPU_LIMITS)
    memory = Memory(call.slots, device)
    pools.fill(memory, call.offsets)
    names = BY_NAME[op].arguments
    arguments = tuple(memory.tensor(name) if name in call.slots else call.plain.get(name) for name in names)
    return Made(call=call, memory=memory, before=memory.bytes.clone(), arguments=arguments)


def calls_of(op: str, seed: int, count: int, device: torch.device) -> Iterator[Made]:
    """Calls that the build has variants for; on the CPU all."""
    pools = Pools(device)
    for index in range(count):
        each = made(op, seed, index, pools, device)
        if device.type == "cpu" or gemmill.explain(op, *each.arguments).entry is not None:
            yield each
