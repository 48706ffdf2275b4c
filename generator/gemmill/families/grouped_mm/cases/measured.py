"""Operands of the measured classes, with copies that differ in their routing: few rows then read other weights each time."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gemmill.families.grouped_mm.cases import calls
from gemmill.families.grouped_mm.config import SCALE_GROUPS
from gemmill.families.grouped_mm.sweep import MeasuredOp
from gemmill.numerics.comparison import Comparison, Wanted
from gemmill.numerics.measured import ROTATED_BYTES, MeasuredWorkload, OneResult, take
from gemmill.vocab import DType

FEWEST_COPIES, MOST_COPIES, COPIED_ROWS = 2, 16, 256
LOOKED_AT, ROWS_OF_EXPERT = 3, 4
"""Experts to compare: so many of the first and of the last ones with rows. Of each the comparison takes the last rows.
The whole in float64 takes too long.
"""


@dataclass(frozen=True, kw_only=True)
class GroupedOperands(OneResult):
    """The `Operands` of a grouped GEMM."""

    call: calls.CallSpec
    given: dict[str, Any]
    """Arguments by name, without offsets and the result."""
    offsets: tuple[Tensor, ...]

    @property
    def op(self) -> str:
        return self.call.op

    @property
    def copies(self) -> int:
        return len(self.offsets)

    def arguments(self, i: int) -> list[Any]:
        return calls.arguments_of(self.op, self.given | {"expert_offsets": self.offsets[i]}, self.out)

    def expected(self) -> "Sampled":
        return Sampled(self)


class Sampled:
    """The reference of some rows with the first routing."""

    def __init__(self, x: GroupedOperands) -> None:
        spans = [(e, begin, end) for e, (begin, end) in enumerate(pairwise(x.offsets[0].tolist())) if end > begin]
        chosen = dict.fromkeys((*spans[:LOOKED_AT], *spans[-LOOKED_AT:]))
        self._parts = [
            (slice(max(begin, end - ROWS_OF_EXPERT), end), self._of(x, e, begin, end)) for e, begin, end in chosen
        ]

    def compare(self, results: Mapping[str, Tensor]) -> Comparison:
        """Compare a whole result [M, N] with the reference's rows. The comparison has the fault of the first wrong
        rows.
        """
        found = [wanted.compare(results["out"][rows]) for rows, wanted in self._parts]
        return next((comparison for comparison in found if not comparison.ok), found[0])

    def _of(self, x: GroupedOperands, expert: int, begin: int, end: int) -> Wanted:
        rows = torch.arange(max(begin, end - ROWS_OF_EXPERT), end, device=x.out.device, dtype=torch.int64)
        ids = x.given["token_ids"]
        tokens = rows if ids is None else ids[rows].long()
        a_scales, b_scales = (x.given[name] for name in ("a_scales", "b_scales"))
        given = {
            **x.given,
            "a": take(x.given["a"], tokens),
            "b": x.given["b"][expert : expert + 1],
            "a_scales": None if a_scales is None else a_scales[tokens],
            "b_scales": None if b_scales is None else b_scales[expert : expert + 1],
            "token_ids": None,
            "expert_offsets": torch.tensor([0, len(rows)], dtype=torch.int32, device=x.out.device),
        }
        out = torch.empty((len(rows), x.call.n), dtype=x.out.dtype, device=x.out.device)
        exactly = bool(x.words) or x.given["a"].dtype is torch.int8
        return calls.wanted_of(x.op, given, out, exactly=exactly, promoted=False)


class GroupedMaker:
    """Makes operands on a device."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device = device
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: MeasuredWorkload) -> GroupedOperands:
        """Operands of normal random numbers, with rows dealt to experts in turn, beginning with any expert."""
        out = torch.full(
            (workload.sizes["m"], workload.sizes["n"]), torch.nan, dtype=torch.bfloat16, device=self._device
        )
        return self._operands(workload, "random", out)

    def exact(self, x: GroupedOperands) -> GroupedOperands | None:
        """Operands of small integers with powers of two as scales; they share the result's memory."""
        return None if x.call.dtype is DType.S8 else self._operands(x.workload, "integers", x.out)

    def _operands(self, workload: MeasuredWorkload, data: str, out: Tensor) -> GroupedOperands:
        op, (m, n, k, experts) = MeasuredOp(workload.op), (workload.sizes[name] for name in ("m", "n", "k", "experts"))
        call = calls.CallSpec(
            counts=(m, *(0,) * (experts - 1)),
            n=n,
            k=k,
            dtype=op.dtype,
            groups=next((groups for groups in SCALE_GROUPS if groups.size == op.group_size), None),
            indexed=op.indexed,
            format=op.weights,
            data=data,
        )
        given = calls.make_given(call, self._device)
        if op.indexed:
            given["token_ids"] = self._below(call.tokens, m).int()
        copies = min(MOST_COPIES, max(FEWEST_COPIES, COPIED_ROWS // max(m, 1)))
        offsets = tuple(self._dealt(m, experts) for _ in range(copies))
        return GroupedOperands(workload=workload, call=call, given=given, offsets=offsets, out=out)

    def _dealt(self, rows: int, experts: int) -> Tensor:
        """Offsets of rows that experts take in turn, in any order."""
        order = torch.rand(experts, device=self._device, generator=self._generator, dtype=torch.float32).argsort()
        counts = torch.full((experts,), rows // experts, device=self._device, dtype=torch.int64)
        counts[order[: rows % experts]] += 1
        return torch.cat((counts.new_zeros(1), counts.cumsum(0))).int()

    def _below(self, end: int, count: int) -> Tensor:
        return torch.randint(0, end, (count,), device=self._device, generator=self._generator, dtype=torch.int64)
