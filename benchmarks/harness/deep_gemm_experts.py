"""DeepGEMM's grouped GEMMs as contenders: scales in groups, rows laid out beforehand as each of its two forms wants them."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from gemmill.tuner.protocol import first_line
from harness.contenders import CheckedCalls
from harness.statistics import Sample
from harness.timers import Prepared, Timer
from timed.fused_experts.calls import ExpertsOperands
from timed.grouped_mm.calls import MoeOperands, rows_of
from timed.grouped_mm.contenders import check
from timed.workload import Workload

GROUP = 128
"""Elements along K that share a scale."""
ALIGNED_ROWS = 128
"""An expert's rows are padded to a multiple of these, of its tile of rows."""
SCALES_BEGIN = 4
"""Columns of scales begin at multiples of 16 bytes."""
MASKED = ("m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked")
"""Its name, and the one before release 2.8."""


@dataclass(frozen=True, kw_only=True)
class Laid:
    """Rows of all experts in slots of their own, and the call that multiplies them."""

    call: Callable[[], object]
    out: Tensor
    """[rows of all slots, N]"""
    begins: list[int]
    """Of each expert's slot."""


@dataclass(frozen=True, kw_only=True)
class DeepGemmExperts:
    """One of its forms."""

    name: str
    lay: Callable[[MoeOperands, int], Laid]
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether scales are in groups of 128."""
        return workload.of.group_size == GROUP

    def call(self, operands: MoeOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.lay(operands, i).call

    def prepare(self, operands: MoeOperands, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        first, offsets = self.lay(operands, 0), operands.offsets[0].tolist()

        def placed(expert: int, rows: slice) -> Tensor:
            begin = first.begins[expert] - offsets[expert]
            return first.out[begin + rows.start : begin + rows.stop]

        check(operands, first.call, placed)
        calls = [first.call, *(self.lay(operands, i).call for i in range(1, operands.copies))]
        return timer.prepare(calls, fewest)

    def host_us(self, operands: MoeOperands, timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.call(operands, 0))


@dataclass(frozen=True, kw_only=True)
class DeepGemmProducts(CheckedCalls):
    """Both products of a layer of experts by its contiguous form, alone: rows are codes in their slots already, and nothing activates,
    codes or sums. So a layer that uses it takes longer. The results are no layer's, and nothing checks them."""

    multiply: Callable[..., object]
    name: str = "deepgemm, two products alone"
    complete: bool = False

    def takes(self, workload: Workload) -> bool:
        """Whether scales are of blocks of 128 x 128."""
        return workload.of.group_size == GROUP

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        x, p = operands, operands.workload
        counts = torch.bincount(x.ids[i].flatten(), minlength=p.experts).tolist()
        layout, _ = _layout(counts, x.x.device)
        first = self._product(x.w13, x.w13_scales, layout)
        second = self._product(x.w2, x.w2_scales, layout)

        def both() -> None:
            first()
            second()

        return both

    def check(self, operands: ExpertsOperands, call: Callable[[], object]) -> None:
        """Nothing."""

    def _product(self, weights: Tensor, scales: Tensor | None, layout: Tensor) -> Callable[[], object]:
        rows, device, (n, k) = len(layout), weights.device, weights.shape[1:]
        a = torch.randn((rows, k), device=device).to(weights.dtype)
        columns = _by_columns(torch.ones((rows, -(-k // GROUP)), device=device))
        out = torch.empty((rows, n), dtype=torch.bfloat16, device=device)
        return partial(self.multiply, (a, columns), (weights, scales), out, layout)


def products_of(module: ModuleType) -> DeepGemmProducts:
    """Of a package. Raises AttributeError where it has not the name."""
    return DeepGemmProducts(multiply=module.m_grouped_fp8_gemm_nt_contiguous)


def forms_of(module: ModuleType) -> list[DeepGemmExperts]:
    """Both forms of a package. Raises AttributeError where it has none of the names."""
    contiguous = module.m_grouped_fp8_gemm_nt_contiguous
    masked = getattr(module, MASKED[0], None) or getattr(module, MASKED[1])
    return [
        DeepGemmExperts(name="deepgemm contiguous", lay=partial(_contiguous, contiguous)),
        DeepGemmExperts(name="deepgemm masked", lay=partial(_masked, masked)),
    ]


def _contiguous(multiply: Callable[..., object], x: MoeOperands, i: int) -> Laid:
    """Slots behind one another; of each row its expert, -1 for padding."""
    layout, begins = _layout(x.offsets[i].diff().tolist(), x.a.device)
    a, a_scales = _in_slots(x, i, begins, len(layout))
    out = torch.empty((len(layout), x.workload.n), dtype=x.out.dtype, device=x.a.device)
    columns = _by_columns(a_scales)
    return Laid(call=partial(multiply, (a, columns), (x.b, x.b_scales), out, layout), out=out, begins=begins)


def _layout(counts: Sequence[int], device: torch.device) -> tuple[Tensor, list[int]]:
    """Of each row of all slots its expert, -1 for padding; and where each slot begins."""
    sizes = [-(-count // ALIGNED_ROWS) * ALIGNED_ROWS for count in counts]
    begins = [sum(sizes[:expert]) for expert in range(len(sizes))]
    owners = [
        expert if row < count else -1
        for expert, (count, size) in enumerate(zip(counts, sizes, strict=True))
        for row in range(size)
    ]
    return torch.tensor(owners, dtype=torch.int32, device=device), begins


def _masked(multiply: Callable[..., object], x: MoeOperands, i: int) -> Laid:
    """Slots of one size, with the rows used of each."""
    counts, experts = x.offsets[i].diff(), x.workload.experts
    size = -(-int(counts.max()) // ALIGNED_ROWS) * ALIGNED_ROWS
    begins = [size * expert for expert in range(experts)]
    a, a_scales = _in_slots(x, i, begins, size * experts)
    out = torch.empty((experts, size, x.workload.n), dtype=x.out.dtype, device=x.a.device)
    columns = _by_columns(a_scales.unflatten(0, (experts, size)))
    given = (a.unflatten(0, (experts, size)), columns), (x.b, x.b_scales), out, counts.int()
    expected = max(1, -(-rows_of(x.workload) // experts))
    return Laid(call=partial(multiply, *given, expected), out=out.flatten(0, 1), begins=begins)


def _in_slots(x: MoeOperands, i: int, begins: Sequence[int], rows: int) -> tuple[Tensor, Tensor]:
    offsets = x.offsets[i].tolist()
    a = torch.zeros((rows, x.workload.k), dtype=x.a.dtype, device=x.a.device)
    a_scales = torch.ones((rows, -(-x.workload.k // GROUP)), device=x.a.device)
    for expert, begin in enumerate(begins):
        count = offsets[expert + 1] - offsets[expert]
        a[begin : begin + count] = x.a[offsets[expert] : offsets[expert + 1]]
        a_scales[begin : begin + count] = x.a_scales[offsets[expert] : offsets[expert + 1]]
    return a, a_scales


def _by_columns(scales: Tensor) -> Tensor:
    """The same scales with those of a column behind one another."""
    *slots, rows, groups = scales.shape
    room = -(-rows // SCALES_BEGIN) * SCALES_BEGIN
    made = torch.ones((*slots, groups, room), device=scales.device).transpose(-1, -2)[..., :rows, :]
    return made.copy_(scales)


def compile_ahead(
    load: Callable[[str], ModuleType], folder: str, workloads: Sequence[Workload], jobs: int, limit_s: float
) -> str:
    """Have `jobs` processes call both forms once for each workload; they keep their kernels on disk. Returns the outcomes."""
    begun = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting = pool.starmap_async(_compile, [(load, folder, workload) for workload in workloads], chunksize=1)
        try:
            failures = [failure for failure in waiting.get(limit_s) if failure]
        except multiprocessing.TimeoutError:
            return f"DeepGEMM had not compiled its kernels for {len(workloads)} workloads after {limit_s:.0f} s"
    text = f"DeepGEMM compiled its kernels for {len(workloads)} workloads in {time.perf_counter() - begun:.0f} s"
    return text if not failures else f"{text}; {len(failures)} failed, the first with: {failures[0]}"


def _compile(load: Callable[[str], ModuleType], folder: str, workload: Workload) -> str | None:
    from timed.grouped_mm.calls import MoeMaker

    try:
        operands = MoeMaker(torch.device("cuda"), 1, filled=False).make(workload)
        for form in forms_of(load(folder)):
            form.call(replace(operands, offsets=operands.offsets[:1]), 0)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{workload}: {first_line(error)}"
    return None
