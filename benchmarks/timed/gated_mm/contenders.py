"""Who is timed on gated GEMMs: gemmill's op, the op by one launch and by two, its product alone, and its product with the op
after it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

import gemmill
from gemmill.families.gated_mm import NAME
from gemmill.families.gated_mm.cases.calls import report_of, wrong_of
from gemmill.families.gated_mm.classes import CLASSES
from gemmill.families.gated_mm.config import GROUP, OPERANDS, Result
from gemmill.families.gated_mm.serving import OF_WORD
from gemmill.family import ShapedCall
from gemmill.runtime.choosing import model_ns, rejection
from gemmill.runtime.ops import active
from gemmill.runtime.variant_table import VariantTable
from harness.contenders import ALIGNED, SM_COUNT, CheckedCalls, WrongResult
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
class Way(GatedContender):
    """The op by one launch, or by its parts: of the variants of that kind the one that the model puts first."""

    in_parts: bool

    def takes(self, workload: Workload) -> bool:
        """Whether the build has such a variant."""
        try:
            table = active().table
        except RuntimeError:  # the reference serves
            return False
        return first_by_model(table, workload, in_parts=self.in_parts) is not None

    def pinned(self, operands: "GatedOperands | ExpertOperands") -> AbstractContextManager[object]:
        """The variant's context."""
        name = first_by_model(active().table, operands.workload, in_parts=self.in_parts)
        assert name is not None  # it takes the workload
        return gemmill.use_variant(name)


def first_by_model(table: VariantTable, workload: Workload, *, in_parts: bool) -> str | None:
    """The variant of a kind that the model puts first for a workload; None where there is none."""
    call = shaped_call_of(workload)
    rows = [
        (model_ns(row, call, SM_COUNT), entry.name)
        for _, row, entry in table.of(NAME)
        if bool(row.facts.parts) is in_parts and not row.quarantined and rejection(row, call) is None
    ]
    return min(rows)[1] if rows else None


def shaped_call_of(workload: Workload) -> ShapedCall:
    """The class and the sizes of a workload's call."""
    of, sizes = workload.of, workload.of.sizes(workload)
    number = CLASSES.number_of(
        dtype=next(dtype for dtype in OPERANDS if getattr(torch, dtype.torch_name) is of.dtype),
        group_size=of.group if of.in_groups else 0,
        rows_scaled=False,
        by_expert=of.of_experts,
        indexed=of.gathered,
        result=Result.GROUP if of.result.group else of.result,
        activation=OF_WORD[of.activation[0]],
    )
    of_all = tuple(sizes.get(name, 0) for name in ("m", "n", "k", "experts"))
    return ShapedCall(family=NAME, call_class=number, sizes=of_all, alignments=(ALIGNED,) * 3)


@dataclass(frozen=True, kw_only=True)
class Separate(CheckedCalls):
    """The product in bf16 alone, or with the op after it. Its columns are not those that the op wants: times are the same."""

    name: str
    with_op: bool
    namespace: str = "gemmill"
    complete: bool = False

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the product, and an op for the stored result. vLLM's products of experts have no offsets, and its
        groups are of 128."""
        of = workload.of
        if self.namespace != "gemmill" and (of.of_experts or (of.in_groups and of.group != GROUP)):
            return False
        return not self.with_op or of.result is not Result.BF16

    def check(self, operands: "GatedOperands | ExpertOperands", call: Callable[[], object]) -> None:
        """Nothing: it computes a part of the op."""

    def call(self, operands: "GatedOperands | ExpertOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        ops = getattr(torch.ops, self.namespace)
        if (
            self.namespace != "gemmill" and operands.workload.of.in_groups
        ):  # vLLM reads scales of blocks column by column
            operands = replace(operands, b_scales=operands.b_scales.t().contiguous().t())
        alone = operands.alone(ops, i)
        if not self.with_op:
            return alone
        after = operands.after(ops)
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
