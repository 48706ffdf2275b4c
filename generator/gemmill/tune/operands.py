"""Random operands of a problem, with as many copies of the weights as keep the L2 cache from holding them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemmill.numerics.exact import powers_of_two, small_integers
from gemmill.tune.problems import Op, Problem
from gemmill.vocab import DType

ROTATED_BYTES = 128 << 20
"""More than twice the 60 MB of L2 of an H200."""
MOST_COPIES = 64
OUT = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Operands:
    """What one call of any contender needs; `weights` are copies that differ, [K, N] column-major."""

    problem: Problem
    a: Tensor
    weights: tuple[Tensor, ...]
    out: Tensor
    a_scales: Tensor
    """[M, 1] float32; in groups [M, K/128], M-major, columns padded to multiples of 16 bytes; of bf16 one value, 1"""
    b_scales: Tensor
    """[1, N] float32; in groups [K/128, N/128], stored as [N/128, K/128]; of bf16 one value, 1"""
    a_scale: Tensor
    """a_scales' first value, without dimensions, for contenders that take one scale for a tensor"""
    b_scale: Tensor
    azp: Tensor | None
    azp_adj: tuple[Tensor | None, ...]
    """One for each copy of the weights."""
    exact: bool = False
    """Of small integers and powers of two (gemmill.numerics.exact): no right kernel rounds before it stores"""


class OperandMaker:
    """Makes operands, keeping the weights of the last (op, N, K): problems that share them should follow each other."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device = device
        self._rotated_bytes = rotated_bytes
        self._key: tuple[DType, int, int] | None = None
        self._weights: tuple[Tensor, ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, problem: Problem) -> Operands:
        """Uniform random operands in [-1, 1] (s8: the whole range) and positive scales (bf16: 1)."""
        weights = self._weights_of(problem)
        rows, columns = problem.m, problem.n
        azp, azp_adj = None, tuple(None for _ in weights)
        if problem.op is Op.INT8_AZP:
            azp = torch.randint(-20, 20, (rows, 1), dtype=torch.int32, device=self._device, generator=self._generator)
            azp_adj = tuple(w.sum(dim=0, dtype=torch.int32) for w in weights)
        a_scales, b_scales = self._scales_of(problem, self._scales)
        return Operands(
            problem=problem,
            a=self._random(rows, problem.k, problem.op),
            weights=weights,
            out=torch.full((rows, columns), torch.nan, dtype=OUT, device=self._device),
            a_scales=a_scales,
            b_scales=b_scales,
            a_scale=a_scales[0, 0].clone(),
            b_scale=b_scales[0, 0].clone(),
            azp=azp,
            azp_adj=azp_adj,
        )

    def exact(self, x: Operands) -> Operands:
        """Exact operands of the same problem, which has no zero points; the output is shared."""
        p = x.problem
        a_scales, b_scales = self._scales_of(p, lambda *shape: powers_of_two(shape, self._generator))
        return replace(
            x,
            a=small_integers(p.m, p.k, x.a.dtype, self._generator),
            weights=(small_integers(p.n, p.k, x.a.dtype, self._generator).t(),),
            a_scales=a_scales,
            b_scales=b_scales,
            a_scale=a_scales[0, 0].clone(),
            b_scale=b_scales[0, 0].clone(),
            exact=True,
        )

    def _scales_of(self, problem: Problem, draw: Callable[[int, int], Tensor]) -> tuple[Tensor, Tensor]:
        groups, rows, columns = problem.op.groups, problem.m, problem.n
        if problem.op is Op.BF16:
            return torch.ones(1, 1, device=self._device), torch.ones(1, 1, device=self._device)
        if groups is None:
            return draw(rows, 1), draw(1, columns)
        a_scales = draw(groups.a_shape(rows, problem.k)[1], rows + -rows % 4).t()[:rows]
        return a_scales, draw(*reversed(groups.b_shape(columns, problem.k))).t()

    def _weights_of(self, problem: Problem) -> tuple[Tensor, ...]:
        key = (problem.op.operand, problem.n, problem.k)
        if key != self._key:
            self._weights, self._key = (), key
            copies = min(
                MOST_COPIES, max(2, -(-self._rotated_bytes // (problem.n * problem.k * problem.element_bytes)))
            )
            self._weights = tuple(self._random(problem.n, problem.k, problem.op).t() for _ in range(copies))
        return self._weights

    def _random(self, rows: int, columns: int, op: Op) -> Tensor:
        if op.operand is DType.S8:
            return torch.randint(
                -128, 128, (rows, columns), dtype=torch.int8, device=self._device, generator=self._generator
            )
        values = torch.rand(rows, columns, dtype=torch.float32, device=self._device, generator=self._generator)
        return values.mul_(2).sub_(1).to(getattr(torch, op.operand.torch_name))

    def _scales(self, rows: int, columns: int) -> Tensor:
        return torch.rand(rows, columns, device=self._device, generator=self._generator) * 0.01 + 0.001
