"""What a user would call instead of gemmill, for figures beside the variants' own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.tune.operands import Operands
from gemmill.tune.problems import Op, Problem

Multiply = Callable[[Operands, int], Tensor | None]
"""Enqueues one call with the i-th copy of the weights. Returns the result, or None if it is in operands.out."""

INT_MM_FEWEST_ROWS = 17
"""torch._int_mm refuses fewer rows of A on CUDA."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer."""

    name: str
    multiply: Multiply
    ops: tuple[Op, ...]
    scales_per_tensor: bool = False
    applies_scales: bool = True
    """Whether it computes all of the op; one that does not is shown, and not compared with."""
    fewest_rows: int = 1
    suits: Callable[[Problem], bool] = lambda problem: True
    """Which problems of its ops it computes."""

    def takes(self, problem: Problem) -> bool:
        """Whether the problem is one of its kind; calling it may still fail."""
        return problem.op in self.ops and problem.m >= self.fewest_rows and self.suits(problem)


def through_ops(namespace: object) -> Multiply:
    """A call of cutlass_scaled_mm or cutlass_scaled_mm_azp as registered in `namespace`."""
    scaled_mm = namespace.cutlass_scaled_mm.default  # type: ignore[attr-defined]
    scaled_mm_azp = namespace.cutlass_scaled_mm_azp.default  # type: ignore[attr-defined]

    def multiply(x: Operands, i: int) -> None:
        if x.problem.op is Op.INT8_AZP:
            scaled_mm_azp(x.out, x.a, x.weights[i], x.a_scales, x.b_scales, x.azp_adj[i], x.azp, None)
        else:
            scaled_mm(x.out, x.a, x.weights[i], x.a_scales, x.b_scales, None)

    return multiply


def torch_row_wise(x: Operands, i: int) -> Tensor:
    """torch's own, a scale for each row and column."""
    return torch._scaled_mm(x.a, x.weights[i], x.a_scales, x.b_scales, out_dtype=x.out.dtype, use_fast_accum=True)


def torch_tensor_wise(x: Operands, i: int) -> Tensor:
    """torch's own, one scale for each operand."""
    return torch._scaled_mm(x.a, x.weights[i], x.a_scale, x.b_scale, out_dtype=x.out.dtype, use_fast_accum=True)


def torch_mm(x: Operands, i: int) -> Tensor:
    """torch's plain product, by cuBLAS, which is told to add slices of K in float32: in bf16 it is another result."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return torch.mm(x.a, x.weights[i], out=x.out)


def torch_int_mm(x: Operands, i: int) -> Tensor:
    """torch's product of integers, without scales."""
    return torch._int_mm(x.a, x.weights[i])


def torch_peers() -> list[Peer]:
    """What torch itself offers."""
    return [
        Peer(name="torch row-wise", multiply=torch_row_wise, ops=(Op.FP8,)),
        Peer(name="torch tensor-wise", multiply=torch_tensor_wise, ops=(Op.FP8,), scales_per_tensor=True),
        Peer(name="torch mm", multiply=torch_mm, ops=(Op.BF16,)),
        Peer(
            name="torch._int_mm",
            multiply=torch_int_mm,
            ops=(Op.INT8,),
            applies_scales=False,
            fewest_rows=INT_MM_FEWEST_ROWS,
        ),
    ]


def vllm_peer(library: str) -> Peer:
    """vLLM's released kernels. Raises OSError or RuntimeError where this process cannot load the library."""
    torch.ops.load_library(library)
    return Peer(name="vllm", multiply=through_ops(torch.ops._C), ops=tuple(Op), suits=vllm_takes)


def vllm_takes(problem: Problem) -> bool:
    """vLLM refuses operands of 16 bits, and ignores the strides of scales in groups: their columns must follow each other
    at multiples of 16 bytes."""
    return problem.op is not Op.BF16 and (problem.op is not Op.FP8_GROUPS or problem.m % 4 == 0)
