"""torch's GEMMs, and whether vLLM computes a workload."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.numerics.measured import MeasuredWorkload, Peer

INT_MM_FEWEST_ROWS = 17
"""torch._int_mm refuses fewer rows of A on CUDA."""


def _scaled_mm(x: Any, i: int) -> Callable[[], Any]:
    scales = x.a_scales, x.b_scales
    return partial(torch._scaled_mm, x.a, x.weights[i], *scales, out_dtype=x.out.dtype, use_fast_accum=True)


def _per_tensor(x: Any) -> Any:
    """The operands, with the first scale of each kind for all."""
    return replace(x, a_scales=x.a_scales[0, 0].clone(), b_scales=x.b_scales[0, 0].clone())


def _mm(x: Any, i: int) -> Callable[[], Any]:
    """The product by cuBLAS, set to add slices of K in float32. In bf16 the result would differ."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return partial(torch.mm, x.a, x.weights[i], out=x.out)


def _int_mm(x: Any, i: int) -> Callable[[], Any]:
    return partial(torch._int_mm, x.a, x.weights[i])


PEERS = (
    Peer(name="torch row-wise", bind=_scaled_mm, takes=lambda workload: workload.op == MeasuredOp.FP8),
    Peer(
        name="torch tensor-wise",
        bind=_scaled_mm,
        takes=lambda workload: workload.op == MeasuredOp.FP8,
        given=_per_tensor,
    ),
    Peer(name="torch mm", bind=_mm, takes=lambda workload: workload.op == MeasuredOp.BF16),
    Peer(
        name="torch._int_mm",
        bind=_int_mm,
        takes=lambda workload: workload.op == MeasuredOp.INT8 and workload.sizes["m"] >= INT_MM_FEWEST_ROWS,
        complete=False,
    ),
)


def vllm_takes(workload: MeasuredWorkload) -> bool:
    """Whether vLLM takes a workload.

    It refuses operands of 16 bits, and groups of 32. It ignores the strides of scales in groups: their columns must
    follow each other at multiples of 16 bytes.
    """
    if workload.op in (MeasuredOp.BF16, MeasuredOp.FP8_GROUPS_32):
        return False
    return workload.op != MeasuredOp.FP8_GROUPS or workload.sizes["m"] % 4 == 0
