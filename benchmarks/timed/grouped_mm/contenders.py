"""Who is timed on grouped GEMMs: gemmill's, the same of other builds, torch, vLLM."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

import gemmill
from gemmill.families.grouped_mm import NAME
from gemmill.families.grouped_mm.bounds import packed_tolerance, tolerance
from gemmill.families.grouped_mm.reference import exact_mm, packed_exact_mm, unpacked
from gemmill.families.grouped_mm.sweep import SWEEP
from gemmill.runtime.library import Build
from harness.contenders import CheckedCalls, WrongResult, classes_served
from timed.grouped_mm.calls import KINDS, MoeOperands, rows_of
from timed.workload import Workload

CHECKED_EXPERTS, CHECKED_ROWS = 3, 4
"""Of those that have rows the first and the last ones, and of each the last rows: whole layers take float64 too long."""
VLLM_SWAPS = 64
"""Up to so many rows vLLM's op takes each workload transposed (run_cutlass_moe_mm_sm90)."""


class _Timed(CheckedCalls):
    def check(self, operands: MoeOperands, call: Callable[[], object]) -> None:
        check(operands, call)


@dataclass(frozen=True, kw_only=True)
class MoeContender(_Timed):
    """The op of one namespace."""

    name: str
    namespace: str

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), self._op(workload))

    def call(self, operands: MoeOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x = operands
        op, format = getattr(getattr(torch.ops, self.namespace), self._op(x.workload)).default, x.workload.of.format
        if format is not None:
            given = x.out, x.a, x.b, x.a_scales, x.b_scales, None, None, x.offsets[i], None, None, str(format)
            return partial(op, *given)
        return partial(op, x.out, x.a, x.b, x.a_scales, x.b_scales, x.offsets[i], None)

    def _op(self, workload: Workload) -> str:
        return "grouped_mm" if workload.of.format is None else "grouped_fp4_mm"


@dataclass(frozen=True, kw_only=True)
class MoeVariant(MoeContender):
    """The op, answered by one variant."""

    kind: str
    """Of operands that the variant takes."""

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of its kind."""
        return workload.kind == self.kind

    def pinned(self, operands: MoeOperands) -> AbstractContextManager:
        """The variant's."""
        return gemmill.use_variant(self.name)


@dataclass(frozen=True, kw_only=True)
class MoePeer(_Timed):
    """The calls that a user would make instead, of one kind of operands."""

    name: str
    bind: Callable[[MoeOperands, int], Callable[[], object]]
    kind: str = "fp8"

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of its kind."""
        return workload.kind == self.kind

    def call(self, operands: MoeOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.bind(operands, i)


def variants_of(build: Build) -> list[MoeVariant]:
    """The variants of a build that serve a measured class, but for those of last resort."""
    kinds = {kind.op.value: name for name, kind in KINDS.items()}
    entries = {entry.name: entry for _, _, entry in build.table.of(NAME) if not SWEEP.is_last_resort(entry.config)}
    return [
        MoeVariant(name=name, namespace="gemmill", kind=kinds[served])
        for name, entry in entries.items()
        for served in classes_served(entry.config, NAME) & kinds.keys()
    ]


def check(
    operands: MoeOperands,
    call: Callable[[], object],
    placed: Callable[[int, slice], torch.Tensor] | None = None,
) -> None:
    """Hold some rows of a result against the reference; `placed` gives an expert's rows where they do not lie in order. Raises
    WrongResult."""
    x = operands
    x.out.fill_(torch.nan)
    returned = call()
    out = returned if isinstance(returned, torch.Tensor) else x.out
    offsets = x.offsets[0].tolist()
    used = [e for e, (begin, end) in enumerate(pairwise(offsets)) if end > begin]
    for expert in {*used[:CHECKED_EXPERTS], *used[-CHECKED_EXPERTS:]}:
        rows = slice(max(offsets[expert], offsets[expert + 1] - CHECKED_ROWS), offsets[expert + 1])
        found = out[rows] if placed is None else placed(expert, rows)
        exact, bound = _wanted(x, expert, rows)
        if not bool(((found.double() - exact).abs() <= bound).all()):
            raise WrongResult(f"wrong result of {x.workload} for expert {expert}")


def _wanted(x: MoeOperands, expert: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact results of rows of an expert, and how far a right kernel may be from them."""
    scales = None if x.a_scales is None else x.a_scales[rows]
    if x.workload.of.format is None:
        given = x.a[rows], x.b[expert], scales, None if x.b_scales is None else x.b_scales[expert]
        return exact_mm(*given), tolerance(*given, x.out.dtype, promoted=False)
    a = x.a[rows].double() * (1.0 if scales is None else scales.double())
    b = weights_of(x, expert)
    bound = packed_tolerance(a, b, None, x.out.dtype, folded=x.workload.of.scaled)
    return packed_exact_mm(a, b, None), bound


def weights_of(x: MoeOperands, expert: int) -> torch.Tensor:
    """Packed weights as float64 [N, K]."""
    return unpacked(x.b[expert], x.b_scales[expert], x.workload.of.format, x.workload.k, folded=x.workload.of.scaled)


def torch_grouped(x: MoeOperands, i: int) -> Callable[[], object]:
    """torch's grouped GEMM, which allocates its result."""
    arguments = x.a, x.b.transpose(1, 2), x.a_scales.flatten(), x.b_scales
    options = {"offs": x.offsets[i][1:].contiguous(), "out_dtype": x.out.dtype, "use_fast_accum": True}
    return partial(torch._scaled_grouped_mm, *arguments, **options)


def torch_grouped_bf16(x: MoeOperands, i: int) -> Callable[[], object]:
    """The same without scales."""
    return partial(torch._grouped_mm, x.a, x.b.transpose(1, 2), offs=x.offsets[i][1:].contiguous())


class Dequantised:
    """torch's grouped GEMM of packed weights, dequantised to bf16 once, outside the measured time."""

    def __init__(self) -> None:
        self._of: torch.Tensor | None = None
        self._weights: torch.Tensor | None = None

    def __call__(self, x: MoeOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        p = x.workload
        if self._of is not x.b:
            self._of, self._weights = x.b, None
            self._weights = torch.empty((p.experts, p.n, p.k), dtype=torch.bfloat16, device=x.a.device)
            for expert, weights in enumerate(self._weights):
                weights.copy_(weights_of(x, expert))
        return partial(torch._grouped_mm, x.a, self._weights.transpose(1, 2), offs=x.offsets[i][1:].contiguous())


def vllm_grouped(x: MoeOperands, i: int) -> Callable[[], object]:
    """vLLM's cutlass_moe_mm, with the output of get_cutlass_moe_mm_data."""
    p, offsets = x.workload, x.offsets[i]
    counts = offsets.diff()
    n, k = torch.full_like(counts, p.n), torch.full_like(counts, p.k)
    sizes = torch.stack((n, counts, k) if rows_of(p) <= VLLM_SWAPS else (counts, n, k), dim=1).contiguous()
    strides = [torch.full((p.experts,), size, dtype=torch.int64, device=x.a.device) for size in (p.k, p.k, p.n)]
    given = x.out, x.a, x.b.transpose(1, 2), x.a_scales, x.b_scales.unsqueeze(-1), offsets[:-1].long(), sizes, *strides
    return partial(torch.ops._C.cutlass_moe_mm.default, *given, True, True)
