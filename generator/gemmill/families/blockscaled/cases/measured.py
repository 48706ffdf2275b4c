"""Operands of the measured classes, with copies of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.blockscaled.cases import calls
from gemmill.families.blockscaled.cases.checked import ROLES_OF
from gemmill.families.blockscaled.sweep import MeasuredOp
from gemmill.formats.quantise import BlockScaled, swizzle
from gemmill.numerics.comparison import Comparison
from gemmill.numerics.measured import ROTATED_BYTES, MeasuredWorkload, OneResult, sampled_rows

MOST_COPIES = 64


@dataclass(frozen=True, kw_only=True)
class BlockScaledOperands(OneResult):
    """The `Operands` of a block-scaled GEMM; `weights` are as the op takes them."""

    call: calls.CallSpec
    made: calls.Operands
    """Operands with the first of the weights."""
    plain: tuple[BlockScaled, ...]
    """Weights in a checkpoint's order: copies that differ."""
    weights: tuple[dict[str, Tensor], ...]

    @property
    def op(self) -> str:
        return self.call.name

    @property
    def copies(self) -> int:
        return len(self.weights)

    def arguments(self, i: int) -> list[Any]:
        return calls.arguments_of(self.op, ROLES_OF[self.op], self.made.given | self.weights[i], self.out)

    def expected(self) -> "Sampled":
        return Sampled(self)


class Sampled:
    """The reference of some rows with the first weights: the first and last rows, and one of every stripe."""

    def __init__(self, x: BlockScaledOperands) -> None:
        self.rows = sampled_rows(x.call.m, x.out.device)
        self._wanted = x.made.wanted(x.call, self.rows)

    def compare(self, results: Mapping[str, Tensor]) -> Comparison:
        """Hold a whole result [M, N] against the reference's rows."""
        return self._wanted.compare(results["out"][self.rows])


class BlockScaledMaker:
    """Makes operands, keeping the weights of the last (class, N, K): workloads that share them should follow each other."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device = device
        self._rotated_bytes = rotated_bytes
        self._key: tuple[str, int, int] | None = None
        self._plain: tuple[BlockScaled, ...] = ()
        self._weights: tuple[dict[str, Tensor], ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: MeasuredWorkload) -> BlockScaledOperands:
        """Operands of normal random numbers with random scales."""
        call = _call_of(workload)
        out = torch.full((call.m, call.n), torch.nan, dtype=torch.bfloat16, device=self._device)
        key = (workload.op, call.n, call.k)
        if key != self._key:
            self._plain, self._weights, self._key = (), (), key
            bytes_ = int(call.n * call.k * call.pair.b_format.bytes_per_value)
            copies = min(MOST_COPIES, max(2, -(-self._rotated_bytes // max(bytes_, 1))))
            self._plain = tuple(self._drawn(call) for _ in range(copies))
            self._weights = tuple(_given(call, weights) for weights in self._plain)
        made = calls.operands_of(call, self._plain[0], self._generator)
        return BlockScaledOperands(
            workload=workload, call=call, made=made, plain=self._plain, weights=self._weights, out=out
        )

    def exact(self, x: BlockScaledOperands) -> BlockScaledOperands | None:
        """Operands of small integers with powers of two as scales; they share the result's memory."""
        call = replace(x.call, data="integers")
        weights = self._drawn(call)
        made = calls.operands_of(call, weights, self._generator)
        return replace(x, call=call, made=made, plain=(weights,), weights=(_given(call, weights),))

    def _drawn(self, call: calls.CallSpec) -> BlockScaled:
        return calls.make_matrix(call.pair.b_format, call.n, call.k, call.data, self._generator)


def _given(call: calls.CallSpec, weights: BlockScaled) -> dict[str, Tensor]:
    if call.is_widened:
        return calls.packed(call, weights)
    if call.is_folded:
        blocks = calls.folded(call, weights)
        return {"b": blocks.blocks, "b_sf": blocks.base}
    return {"b": weights.codes, "b_sf": swizzle(weights.scales)}


def _call_of(workload: MeasuredWorkload) -> calls.CallSpec:
    m, n, k = (workload.sizes[name] for name in "mnk")
    return calls.CallSpec(m=m, n=n, k=k, pair=MeasuredOp(workload.op).pair)
