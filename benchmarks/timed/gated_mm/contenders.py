"""Who is timed on gated GEMMs: gemmill's op, its product alone, and its product with the op after it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gemmill.families.gated_mm.cases.calls import report_of, wrong_of
from gemmill.families.gated_mm.config import Result
from harness.contenders import CheckedCalls, WrongResult
from timed.gated_mm.calls import GatedOperands
from timed.gated_mm.experts import ExpertOperands
from timed.workload import Workload


@dataclass(frozen=True, kw_only=True)
class GatedContender(CheckedCalls):
    """The op of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return all(
            hasattr(getattr(torch.ops, self.namespace), op) for op in ("scaled_mm_act_quant", "grouped_mm_act_quant")
        )

    def check(self, operands: "GatedOperands | ExpertOperands", call: Callable[[], object]) -> None:
        check(operands, call)

    def call(self, operands: "GatedOperands | ExpertOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return operands.call(getattr(torch.ops, self.namespace), i)


@dataclass(frozen=True, kw_only=True)
class Separate(CheckedCalls):
    """The product in bf16 alone, or with the op after it. Its columns are not those that the op wants: times are the same."""

    name: str
    with_op: bool
    complete: bool = False

    def takes(self, workload: Workload) -> bool:
        """Whether there is an op for the stored result."""
        return not self.with_op or workload.of.result is not Result.BF16

    def check(self, operands: "GatedOperands | ExpertOperands", call: Callable[[], object]) -> None:
        """Nothing: it computes a part of the op."""

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
    activation, alpha, limit, beta = x.workload.of.activation
    numbers = {"activation": activation, "alpha": alpha, "limit": limit, "beta": beta}
    part, found = x.part()
    if report := report_of(wrong_of(part | numbers | {"static_scale": x.static_scale}, found, exactly=False)):
        raise WrongResult(f"wrong result of {x.workload}: {report}")
