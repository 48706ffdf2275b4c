"""Who is timed on gated GEMMs: gemmill's op, its product alone, and its product with the op after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gemmill.families.gated_mm.cases.calls import report_of, wrong_of
from gemmill.families.gated_mm.config import Result
from harness.contenders import WrongResult
from harness.statistics import Sample
from harness.timers import Prepared, Timer
from timed.gated_mm.calls import GatedOperands
from timed.gated_mm.experts import ExpertOperands
from timed.gated_mm.layers import GatedWorkload


class Calls(Protocol):
    """How one copy of operands is computed."""

    def call(self, operands: "GatedOperands | ExpertOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        ...


class _Timed:
    def host_us(self: Calls, operands: "GatedOperands | ExpertOperands", timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.call(operands, 0))


@dataclass(frozen=True, kw_only=True)
class GatedContender(_Timed):
    """The op of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, workload: GatedWorkload) -> bool:
        """Whether the namespace has the op."""
        return all(
            hasattr(getattr(torch.ops, self.namespace), op) for op in ("scaled_mm_act_quant", "grouped_mm_act_quant")
        )

    def prepare(self, operands: "GatedOperands | ExpertOperands", timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        check(operands, self.call(operands, 0))
        return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def call(self, operands: "GatedOperands | ExpertOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return operands.call(getattr(torch.ops, self.namespace), i)


@dataclass(frozen=True, kw_only=True)
class Separate(_Timed):
    """The product in bf16 alone, or with the op after it. Its columns are not those that the op wants: times are the same."""

    name: str
    with_op: bool
    complete: bool = False

    def takes(self, workload: GatedWorkload) -> bool:
        """Whether there is an op for the stored result."""
        return not self.with_op or workload.result is not Result.BF16

    def prepare(self, operands: "GatedOperands | ExpertOperands", timer: Timer, fewest: int) -> Prepared:
        """Make ready to be timed."""
        return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def call(self, operands: "GatedOperands | ExpertOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        alone = operands.alone(torch.ops.gemmill, i)
        if not self.with_op:
            return alone
        after = operands.after(torch.ops.gemmill)
        return lambda: (alone(), after())


def check(operands: "GatedOperands | ExpertOperands", call: Callable[[], object]) -> None:
    """Hold the last rows and columns of a result against the reference. Raises WrongResult."""
    x = operands
    for written in (x.out, x.out_scales):
        if written is not None:
            written.view(torch.uint8).fill_(0x7F)
    call()
    activation, alpha, limit, beta = x.workload.activation
    numbers = {"activation": activation, "alpha": alpha, "limit": limit, "beta": beta}
    part, found = x.part()
    if report := report_of(wrong_of(part | numbers | {"static_scale": x.static_scale}, found, exactly=False)):
        raise WrongResult(f"wrong result of {x.workload}: {report}")
