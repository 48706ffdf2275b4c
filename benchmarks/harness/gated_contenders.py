"""Who is timed on gated GEMMs: gemmill's op, its product alone, and its product with the op after it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from gemmill.families.gated_mm.cases.calls import report_of, wrong_of
from gemmill.families.gated_mm.config import GROUP, Result
from harness.contenders import WrongResult
from harness.statistics import Sample
from harness.timers import Prepared, Timer

if TYPE_CHECKING:
    from timed.gated_mm import GatedOperands, GatedWorkload

CHECKED_ROWS, CHECKED_COLUMNS = 8, 256
"""At the end of each: whole layers take float64 too long."""


class Calls(Protocol):
    """How one copy of operands is computed."""

    def call(self, operands: "GatedOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        ...


class _Timed:
    def host_us(self: Calls, operands: "GatedOperands", timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.call(operands, 0))


@dataclass(frozen=True, kw_only=True)
class GatedContender(_Timed):
    """The op of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, workload: "GatedWorkload") -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), "scaled_mm_act_quant")

    def prepare(self, operands: "GatedOperands", timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        check(operands, self.call(operands, 0))
        return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def call(self, operands: "GatedOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, op = operands, getattr(torch.ops, self.namespace).scaled_mm_act_quant.default
        given = x.out, x.out_scales, x.a, x.weights[i], x.a_scales, x.b_scales
        return partial(op, *given, *x.workload.activation, x.static_scale)


@dataclass(frozen=True, kw_only=True)
class Separate(_Timed):
    """The product in bf16 alone, or with the op after it. Its columns are not those that the op wants: times are the same."""

    name: str
    with_op: bool
    complete: bool = False

    def takes(self, workload: "GatedWorkload") -> bool:
        """Whether there is an op for what is stored."""
        return not self.with_op or workload.result is not Result.BF16

    def prepare(self, operands: "GatedOperands", timer: Timer, fewest: int) -> Prepared:
        """Make ready to be timed."""
        return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def call(self, operands: "GatedOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, ops = operands, torch.ops.gemmill
        product = partial(ops.cutlass_scaled_mm.default, x.product, x.a, x.weights[i], x.a_scales, x.b_scales, None)
        if not self.with_op:
            return product
        if x.out_scales is not None:
            after = partial(ops.silu_and_mul_per_block_quant.default, x.out, x.product, x.out_scales, 128)
        else:
            after = partial(ops.silu_and_mul_quant.default, x.out, x.product, x.static_scale)
        return lambda: (product(), after())


def check(operands: "GatedOperands", call: Callable[[], object]) -> None:
    """Hold the last rows and columns of a result against the reference. Raises WrongResult."""
    x = operands
    for written in (x.out, x.out_scales):
        if written is not None:
            written.view(torch.uint8).fill_(0x7F)
    call()
    rows, columns = slice(-CHECKED_ROWS, None), min(CHECKED_COLUMNS, x.workload.hidden)
    activation, alpha, limit, beta = x.workload.activation
    given = {
        "a": x.a[rows],
        "b": x.weights[0][:, -2 * columns :],
        "a_scales": x.a_scales[rows],
        "b_scales": x.b_scales[:, -(2 * columns // GROUP) :] if x.workload.in_groups else x.b_scales[-2 * columns :],
        "activation": activation,
        "alpha": alpha,
        "limit": limit,
        "beta": beta,
        "static_scale": x.static_scale,
    }
    found = {"out": x.out[rows, -columns:]}
    if x.out_scales is not None:
        found["out_scales"] = x.out_scales[rows, -(columns // GROUP) :]
    if report := report_of(wrong_of(given, found, exactly=False)):
        raise WrongResult(f"wrong result of {x.workload}: {report}")
