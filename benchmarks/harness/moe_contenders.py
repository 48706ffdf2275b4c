"""Who is timed on grouped GEMMs: gemmill's, the same of other builds, torch, vLLM."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from gemmill.families.moe.bounds import tolerance
from gemmill.families.moe.reference import exact_mm
from harness.contenders import WrongResult
from harness.statistics import Sample
from harness.timers import Prepared, Timer

if TYPE_CHECKING:
    from timed.moe import MoeOperands, MoeWorkload

CHECKED_EXPERTS, CHECKED_ROWS = 3, 4
"""Of those that have rows the first and the last ones, and of each the last rows: whole layers take float64 too long."""
VLLM_SWAPS = 64
"""Up to so many rows vLLM's op takes each problem transposed (run_cutlass_moe_mm_sm90)."""


class Calls(Protocol):
    """How one copy of operands is computed."""

    def call(self, operands: "MoeOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        ...


class _Timed:
    complete = True

    def prepare(self: Calls, operands: "MoeOperands", timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        check(operands, self.call(operands, 0))
        return timer.prepare([self.call(operands, i) for i in range(operands.copies)], fewest)

    def host_us(self: Calls, operands: "MoeOperands", timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.call(operands, 0))


@dataclass(frozen=True, kw_only=True)
class MoeContender(_Timed):
    """The op of one namespace."""

    name: str
    namespace: str

    def takes(self, problem: "MoeWorkload") -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), "grouped_mm")

    def call(self, operands: "MoeOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, op = operands, getattr(torch.ops, self.namespace).grouped_mm.default
        return partial(op, x.out, x.a, x.b, x.a_scales, x.b_scales, x.offsets[i], None)


@dataclass(frozen=True, kw_only=True)
class MoePeer(_Timed):
    """What a user would call instead, of one kind of operands."""

    name: str
    bind: Callable[["MoeOperands", int], Callable[[], object]]
    kind: str = "fp8"

    def takes(self, problem: "MoeWorkload") -> bool:
        """Whether the problem is one of its kind."""
        return problem.kind == self.kind

    def call(self, operands: "MoeOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.bind(operands, i)


def check(
    operands: "MoeOperands",
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
        scales = (None, None) if x.a_scales is None else (x.a_scales[rows], x.b_scales[expert])
        given = x.a[rows], x.b[expert], *scales
        found = out[rows] if placed is None else placed(expert, rows)
        error = (found.double() - exact_mm(*given)).abs()
        if not bool((error <= tolerance(*given, out.dtype, promoted=False)).all()):
            raise WrongResult(f"wrong result of {x.problem} for expert {expert}")


def torch_grouped(x: "MoeOperands", i: int) -> Callable[[], object]:
    """torch's grouped GEMM, which allocates its result."""
    arguments = x.a, x.b.transpose(1, 2), x.a_scales.flatten(), x.b_scales
    options = {"offs": x.offsets[i][1:].contiguous(), "out_dtype": x.out.dtype, "use_fast_accum": True}
    return partial(torch._scaled_grouped_mm, *arguments, **options)


def torch_grouped_bf16(x: "MoeOperands", i: int) -> Callable[[], object]:
    """The same without scales."""
    return partial(torch._grouped_mm, x.a, x.b.transpose(1, 2), offs=x.offsets[i][1:].contiguous())


def vllm_grouped(x: "MoeOperands", i: int) -> Callable[[], object]:
    """vLLM's cutlass_moe_mm, with what get_cutlass_moe_mm_data would make."""
    p, offsets = x.problem, x.offsets[i]
    counts = offsets.diff()
    n, k = torch.full_like(counts, p.n), torch.full_like(counts, p.k)
    sizes = torch.stack((n, counts, k) if p.rows <= VLLM_SWAPS else (counts, n, k), dim=1).contiguous()
    strides = [torch.full((p.experts,), size, dtype=torch.int64, device=x.a.device) for size in (p.k, p.k, p.n)]
    given = x.out, x.a, x.b.transpose(1, 2), x.a_scales, x.b_scales.unsqueeze(-1), offsets[:-1].long(), sizes, *strides
    return partial(torch.ops._C.cutlass_moe_mm.default, *given, True, True)
