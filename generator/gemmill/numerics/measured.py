"""Operands of one workload, which tune and benchmarks time: as many copies as keep them out of the L2 cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gemmill.numerics.comparison import Comparison
from gemmill.numerics.memory import Slot

ROTATED_BYTES = 128 << 20
"""The bytes of all copies: more than twice the 60 MB of L2 of an H200."""
EDGE_ROWS = 8
STRIPE, LARGE_STRIPE, MANY_ROWS = 16, 64, 4096
"""The rows of a stripe. No tile has fewer than 16 and none begins within a stripe, so the comparison sees a row of each
tile. Kernels whose tiles have fewer than 64 are for a small M.
"""


class MeasuredWorkload(Protocol):
    """A measured class of calls at one size."""

    @property
    def op(self) -> str:
        """The class, by the name that tables know it by."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes by name."""


class Expected(Protocol):
    """The expected results of a workload's first copy, made once for all contenders."""

    def compare(self, results: Mapping[str, Tensor]) -> Comparison:
        """Hold results, by the names of the outputs, against the reference."""


class Operands(Protocol):
    """The operands of one call, for all contenders of a workload. Copies differ in the operands that a call reads most."""

    @property
    def workload(self) -> Any:
        """The MeasuredWorkload."""

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """The tensors that calls write, by argument."""

    @property
    def words(self) -> str:
        """The sentence on a wrong result of constant operands."""

    @property
    def op(self) -> str:
        """The op that computes it."""

    @property
    def copies(self) -> int:
        """The number of copies."""

    def arguments(self, i: int) -> Sequence[Any]:
        """The arguments of the op, with the i-th copy."""

    def writing(self, outputs: Mapping[str, Tensor]) -> Self:
        """The same operands, with other outputs."""

    def slots(self, pad: int) -> Mapping[str, Slot]:
        """Slots for outputs, their rows `pad` elements apart."""

    def expected(self) -> Expected:
        """The results by the reference."""


class _Spec(Protocol):
    """A call's spec."""

    @property
    def data(self) -> str:
        """The kind of operands; `integers` are small ones."""


@dataclass(frozen=True, kw_only=True)
class OneResult:
    """The part of `Operands` that is alike where calls write one matrix."""

    workload: MeasuredWorkload
    call: _Spec
    out: Tensor

    @property
    def words(self) -> str:
        return " with small integers" if self.call.data == "integers" else ""

    @property
    def outputs(self) -> dict[str, Tensor]:
        return {"out": self.out}

    def writing(self, outputs: Mapping[str, Tensor]) -> Self:
        return replace(self, out=outputs["out"])

    def slots(self, pad: int) -> dict[str, Slot]:
        rows, columns = self.out.shape
        return {"out": Slot.matrix(self.out.dtype, (rows, columns), (columns + pad, 1), values=None, written=True)}


class Maker(Protocol):
    """The maker of operands on a device. It may keep copies, so workloads that share them should follow each other."""

    def make(self, workload: Any) -> Operands:
        """Random operands of a MeasuredWorkload."""

    def exact(self, operands: Any) -> Operands | None:
        """Other operands of the same workload whose result no right kernel rounds before it stores it. None where
        random ones are so.
        """


Bind = Callable[[Any, int], Callable[[], Any]]
"""One call, of operands and the index of a copy. It returns its results where it did not write them to the outputs."""


def as_they_are(operands: Any) -> Any:
    """The operands."""
    return operands


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call that a user would make instead of gemmill's."""

    name: str
    bind: Bind
    takes: Callable[[Any], bool]
    """Whether a MeasuredWorkload is one of its kind; calling it may still fail."""
    given: Callable[[Any], Any] = as_they_are
    """The operands in the form that it takes, of which its result must be right."""
    complete: bool = True
    """Whether it computes all of the op. One that does not is shown, and not compared with."""


def through(namespace: Any) -> Bind:
    """Calls of the op as registered in a namespace of torch's."""
    return lambda operands, i: partial(getattr(namespace, operands.op).default, *operands.arguments(i))


def results_of(operands: Operands, returned: Any) -> dict[str, Tensor]:
    """The results by the names of the outputs, whether a call returned or wrote them."""
    if returned is None:
        return dict(operands.outputs)
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(operands.outputs, tensors, strict=True))


def sampled_rows(rows: int, device: torch.device) -> Tensor:
    """The rows to compare, sorted: all of few, else the edges and one of every stripe, another in each."""
    stripe = STRIPE if rows <= MANY_ROWS else LARGE_STRIPE
    if rows <= 2 * LARGE_STRIPE:
        return torch.arange(rows, device=device, dtype=torch.int64)
    edges = [*range(EDGE_ROWS), *range(rows - EDGE_ROWS, rows)]
    inside = [min(start + 37 * (start // stripe) % stripe, rows - 1) for start in range(0, rows, stripe)]
    return torch.tensor(sorted({*edges, *inside}), device=device, dtype=torch.int64)


def take(matrix: Tensor, rows: Tensor) -> Tensor:
    """The matrix at these rows. Elements of one byte are indexed as bytes, because not every torch can index FP8
    tensors.
    """
    return matrix.view(torch.uint8)[rows].view(matrix.dtype) if matrix.dtype.itemsize == 1 else matrix[rows]
