"""Who is timed on sparse GEMMs: gemmill's, its variants, and cuSPARSELt and dense GEMMs by torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

import gemmill
from gemmill.families.sparse_mm.bounds import exact_mm, tolerance
from harness.contenders import CheckedCalls, WrongResult
from timed.sparse_mm.calls import SparseOperands
from timed.workload import Workload

CHECKED_ROWS = 4
"""First and last ones: whole results take float64 too long."""


class _Timed(CheckedCalls):
    def check(self, operands: SparseOperands, call: Callable[[], object]) -> None:
        check(operands, call)


@dataclass(frozen=True, kw_only=True)
class SparseContender(_Timed):
    """The op of one namespace, or one variant of it."""

    name: str
    namespace: str
    variant: str = ""
    dtype: str = ""
    """Of the variant's operands."""

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op, and the variant is of the workload's kind."""
        is_kind = not self.variant or str(workload.of.dtype).removeprefix("torch.") == self.dtype
        return is_kind and hasattr(getattr(torch.ops, self.namespace), "cutlass_scaled_sparse_mm")

    def pinned(self, operands: SparseOperands) -> AbstractContextManager:
        """The variant's."""
        return gemmill.use_variant(self.variant) if self.variant else nullcontext()

    def call(self, operands: SparseOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, op = operands, getattr(torch.ops, self.namespace).cutlass_scaled_sparse_mm.default
        return partial(op, x.out, x.a, x.values[i], x.meta[i], x.one, x.one, None)


@dataclass(frozen=True, kw_only=True)
class SparsePeer(_Timed):
    """The calls that a user would make instead. Scales of 1 need no call of their own."""

    name: str
    bind: Callable[[SparseOperands, int], Callable[[], object]]
    kinds: tuple[str, ...]
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of its kinds."""
        return workload.kind in self.kinds

    def call(self, operands: SparseOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.bind(operands, i)


def check(operands: SparseOperands, call: Callable[[], object]) -> None:
    """Hold some rows of a result against the reference. Raises WrongResult."""
    x = operands
    x.out.fill_(torch.nan)
    returned = call()
    out = returned if isinstance(returned, torch.Tensor) else x.out
    rows = sorted({*range(min(CHECKED_ROWS, x.workload.m)), *range(max(0, x.workload.m - CHECKED_ROWS), x.workload.m)})
    given = x.a[rows], x.dense[0].t(), x.one, x.one
    wrong = ~((out[rows].double() - exact_mm(*given)).abs() <= tolerance(*given, out.dtype))
    if bool(wrong.any()):
        raise WrongResult(
            f"wrong result of {x.workload}: {int(wrong.sum())} of {wrong.numel()} elements in {len(rows)} rows"
        )


_searched: dict[tuple[object, ...], tuple[int, ...]] = {}


def cusparselt(x: SparseOperands, i: int) -> Callable[[], object]:
    """torch's cuSPARSELt, by the algorithm that its own search finds for the shape."""
    compressed = torch._cslt_compress(x.dense[i])
    b = x.a.t()
    out_dtype = None if x.a.dtype is torch.bfloat16 else torch.bfloat16
    key = (x.workload.kind, *x.workload.sizes.values())
    if key not in _searched:
        _searched[key] = _search(compressed, b, out_dtype)
    alg, *split = _searched[key]
    options = {"out_dtype": out_dtype, "transpose_result": True, "alg_id": alg}
    if split:
        options |= {"split_k": split[0], "split_k_mode": split[1]}
    return partial(torch._cslt_sparse_mm, compressed, b, **options)


def _search(compressed: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> tuple[int, ...]:
    """Algorithm, and where torch tells them slices of K and their mode."""
    bindings = getattr(torch._C, "_cusparselt", None)
    if bindings is not None and hasattr(bindings, "mm_search"):
        alg, split_k, split_k_mode, _ = bindings.mm_search(compressed, b, None, None, out_dtype, True)
        return alg, split_k, split_k_mode
    return (torch._cslt_sparse_mm_search(compressed, b, out_dtype=out_dtype, transpose_result=True),)


def dense(x: SparseOperands, i: int) -> Callable[[], object]:
    """torch's dense GEMM of the same weights with their zeros."""
    weights = x.dense[i].t()
    if x.a.dtype is torch.bfloat16:
        return partial(torch.mm, x.a, weights, out=x.out)
    return partial(torch._scaled_mm, x.a, weights, x.one, x.one, out_dtype=torch.bfloat16, use_fast_accum=True)


SPARSE_PEERS = (
    SparsePeer(name="cuSPARSELt", bind=cusparselt, kinds=("fp8", "int8", "bf16")),
    SparsePeer(name="torch dense", bind=dense, kinds=("fp8", "bf16"), complete=False),
)
