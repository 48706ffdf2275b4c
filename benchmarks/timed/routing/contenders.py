"""Who is timed on routers: gemmill's op, and the two launches or more that a user would make instead."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from gemmill.families.routing.cases import WEIGHT_ERROR, fault_of
from gemmill.families.routing.reference import largest
from harness.contenders import CheckedCalls, WrongResult
from timed.routing.calls import RouterOperands
from timed.workload import Workload


@dataclass(frozen=True, kw_only=True)
class RouterContender(CheckedCalls):
    """The op of a namespace."""

    name: str
    namespace: str

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), "router_topk")

    def call(self, operands: RouterOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        op = getattr(torch.ops, self.namespace).router_topk.default
        return partial(op, *operands.results, operands.x, operands.weights[i], True, None)

    def check(self, operands: RouterOperands, call: Callable[[], object]) -> None:
        """Hold a result against the reference. Raises WrongResult."""
        logits, weights, ids = operands.results
        logits.fill_(torch.nan), weights.fill_(torch.nan), ids.fill_(-1)
        call()
        if fault := fault_of(logits, weights, ids, operands.x, operands.weights[0], renormalize=True):
            raise WrongResult(f"wrong result of {operands.workload}: {fault}")


@dataclass(frozen=True, kw_only=True)
class RouterPeer(CheckedCalls):
    """F.linear, alone or with what takes the largest of its logits."""

    name: str
    largest: Callable[[torch.Tensor, RouterOperands], object] | None = None

    @property
    def complete(self) -> bool:
        """Whether it takes the largest."""
        return self.largest is not None

    def takes(self, workload: Workload) -> bool:
        """Any."""
        return True

    def call(self, operands: RouterOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        if self.largest is None:
            return partial(F.linear, operands.x, operands.weights[i])
        return lambda: self.largest(F.linear(operands.x, operands.weights[i]), operands)

    def check(self, operands: RouterOperands, call: Callable[[], object]) -> None:
        """Hold its logits, and the weights of the largest, against the reference; of equal logits it may take either. Raises WrongResult."""
        x, weight, returned = operands.x, operands.weights[0], call()
        logits = returned if self.largest is None else F.linear(x, weight)
        weights, ids = largest(logits, operands.workload.topk, renormalize=True)
        fault = fault_of(logits, weights, ids, x, weight, renormalize=True)
        if (
            not fault
            and self.largest is not None
            and not torch.allclose(returned[0], weights, rtol=WEIGHT_ERROR, atol=0)
        ):
            fault = "weights are not those of its largest logits"
        if fault:
            raise WrongResult(f"wrong result of {operands.workload}: {fault}")


def softmax_topk(logits: torch.Tensor, operands: RouterOperands) -> object:
    """torch's ops."""
    weights, ids = torch.softmax(logits.float(), dim=1).topk(operands.workload.topk)
    return weights / weights.sum(dim=1, keepdim=True), ids


ROUTER_PEERS = (RouterPeer(name="torch", largest=softmax_topk), RouterPeer(name="F.linear alone"))
