"""Operands of the measured classes of calls, with copies of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.scaled_mm.bounds import exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.cases import calls
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.numerics.comparison import Comparison, Wanted
from gemmill.numerics.measured import ROTATED_BYTES, MeasuredWorkload, OneResult, sampled_rows, take
from gemmill.vocab import Accumulation, DType

MOST_COPIES = 64


@dataclass(frozen=True, kw_only=True)
class GemmOperands(OneResult):
    """The `Operands` of a GEMM; `weights` are copies that differ, [K, N] column-major."""

    call: calls.CallSpec
    a: Tensor
    weights: tuple[Tensor, ...]
    a_scales: Tensor
    """[M, 1] float32; in groups of g [M, K/g], M-major, columns padded to multiples of 16 bytes; of bf16 one value, 1"""
    b_scales: Tensor
    """[1, N] float32; in groups [K/g, N/g], stored as [N/g, K/g]; of bf16 one value, 1"""
    azp: Tensor | None
    azp_adj: tuple[Tensor | None, ...]
    """The azp_adj of each copy of the weights; None where calls have none."""

    @property
    def op(self) -> str:
        return self.call.op

    @property
    def copies(self) -> int:
        return len(self.weights)

    def arguments(self, i: int) -> list[Any]:
        azp = () if self.call.azp == "none" else (self.azp_adj[i], self.azp)
        return [self.out, self.a, self.weights[i], self.a_scales, self.b_scales, *azp, None]

    def expected(self) -> "Sampled":
        return Sampled(self)


class Sampled:
    """The reference of some rows with the first weights.

    They are the first and last rows, and one of every 16, or 64 of many rows. So the comparison sees every tile of a
    kernel.
    """

    def __init__(self, x: GemmOperands) -> None:
        b = x.weights[0]
        self.rows = sampled_rows(x.a.shape[0], b.device)
        a = take(x.a, self.rows)
        a_scales = x.a_scales[self.rows] if x.a_scales.numel() > 1 else x.a_scales
        azp = None if x.azp is None else x.azp[self.rows]
        rounded = scaled_mm(a, b, a_scales, x.b_scales, x.out.dtype, azp_adj=x.azp_adj[0], azp=azp)
        exact = bound = None
        if a.dtype.is_floating_point and not x.words:
            exact = exact_scaled_mm(a, b, a_scales, x.b_scales)
            bound = tolerance(a, b, a_scales, x.b_scales, x.out.dtype, Accumulation.FAST)
        self._wanted = Wanted(rounded=rounded, exact=exact, bound=bound)

    def compare(self, results: Mapping[str, Tensor]) -> Comparison:
        """Hold a whole result [M, N] against the reference's rows."""
        return self._wanted.compare(results["out"][self.rows])


class GemmMaker:
    """The maker of operands. It keeps the weights of the last (operand, N, K): workloads that share them should follow
    each other."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device = device
        self._rotated_bytes = rotated_bytes
        self._key: tuple[DType, int, int] | None = None
        self._weights: tuple[Tensor, ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: MeasuredWorkload) -> GemmOperands:
        """Uniform random operands in [-1, 1] (s8: the whole range) and positive scales (bf16: 1)."""
        call = _call_of(workload)
        out = torch.full((call.m, call.n), torch.nan, dtype=torch.bfloat16, device=self._device)
        return self._operands(workload, call, self._weights_of(call), out)

    def exact(self, x: GemmOperands) -> GemmOperands | None:
        """Operands of small integers and powers of two (gemmill.numerics.exact), where sums are of floating-point
        numbers.

        They share the result's memory.
        """
        if not x.a.dtype.is_floating_point:
            return None
        call = replace(x.call, data="integers")
        return self._operands(x.workload, call, (self._weight(call),), x.out)

    def _operands(
        self, workload: MeasuredWorkload, call: calls.CallSpec, weights: tuple[Tensor, ...], out: Tensor
    ) -> GemmOperands:
        a_scales, b_scales = calls.make_scales(call, self._generator)
        made = [calls.make_zero_points(call, weight, self._generator) for weight in weights]
        return GemmOperands(
            workload=workload,
            call=call,
            a=calls.make_data(call, call.m, call.k, self._generator),
            weights=weights,
            out=out,
            a_scales=a_scales,
            b_scales=b_scales,
            azp=made[0][1],
            azp_adj=tuple(azp_adj for azp_adj, _ in made),
        )

    def _weights_of(self, call: calls.CallSpec) -> tuple[Tensor, ...]:
        key = (call.a_dtype, call.n, call.k)
        if key != self._key:
            self._weights, self._key = (), key
            bytes_ = call.n * call.k * call.a_dtype.bits // 8
            copies = min(MOST_COPIES, max(2, -(-self._rotated_bytes // bytes_)))
            self._weights = tuple(self._weight(call) for _ in range(copies))
        return self._weights

    def _weight(self, call: calls.CallSpec) -> Tensor:
        return calls.make_data(call, call.n, call.k, self._generator).t()


def _call_of(workload: MeasuredWorkload) -> calls.CallSpec:
    op = MeasuredOp(workload.op)
    of_bf16 = ("unit", "unit") if op is MeasuredOp.BF16 else ("each", "each")
    kinds = ("one", "together") if op.groups else of_bf16
    return calls.CallSpec(
        m=workload.sizes["m"],
        n=workload.sizes["n"],
        k=workload.sizes["k"],
        a_dtype=op.operand,
        azp="token" if op is MeasuredOp.INT8_AZP else "none",
        groups=op.groups,
        a_scale=kinds[0],
        b_scale=kinds[1],
        data="uniform",
    )
