"""Which sparse GEMMs are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from gemmill.formats.two_to_four import GROUP, KEPT, compress
from timed.workload import Kind, Workload

TABLE = (
    (1, 8192, 8192),
    (16, 8192, 8192),
    (64, 8192, 8192),
    (256, 8192, 8192),
    (1024, 8192, 8192),
    (4096, 8192, 8192),
    (8192, 28672, 4096),
)
"""(M, N, K) by which progress is measured."""
FEWEST_COPIES, MOST_COPIES = 2, 8
TINY = (5, 64, 128)
DRAWN_ROWS, DRAWN_SIDES, DRAWN_WEIGHTS = (16, 8192), (512, 32768), (1 << 22, 1 << 28)
"""The least and most of M, of N and K, and of their product."""
ROW_STEP, SIDE_STEP = 16, 128
"""cuSPARSELt takes multiples of 16 rows alone."""


@dataclass(frozen=True, kw_only=True)
class SparseKind(Kind):
    """GEMMs of one operand type, at m, n and k."""

    dtype: torch.dtype
    """Of a and of the weights."""

    def flops(self, p: Workload) -> float:
        """Multiplications and additions, those with zeros counted."""
        return 2.0 * p.m * p.n * p.k

    def weight_bytes(self, p: Workload) -> int:
        """Kept values, and their places."""
        return p.n * p.k * self.dtype.itemsize // 2 + p.n * p.k // 8

    def bytes(self, p: Workload) -> int:
        """Weights, activations, results."""
        return self.weight_bytes(p) + p.m * p.k * self.dtype.itemsize + 2 * p.m * p.n


KINDS = {
    name: SparseKind(name=name, dtype=dtype)
    for name, dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8), ("bf16", torch.bfloat16))
}


@dataclass(frozen=True, kw_only=True)
class SparseOperands:
    """The operands of one GEMM; copies have weights of their own. Scales are 1: peers have none."""

    workload: Workload
    out: Tensor
    a: Tensor
    dense: tuple[Tensor, ...]
    """[N, K] with its zeros, which peers compress."""
    values: tuple[Tensor, ...]
    meta: tuple[Tensor, ...]
    one: Tensor

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.values)


class SparseMaker:
    """Makes operands: normal random numbers, of which any two of four are zeroed."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated = device, rotated_bytes
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> SparseOperands:
        """Of a workload."""
        p = workload
        weights = self._numbers(p, p.n)
        lost = torch.rand(p.n, p.k // GROUP, GROUP, device=self._device, generator=self._generator)
        weights = weights.float().masked_fill(lost.argsort(dim=-1).ge(KEPT).flatten(1), 0.0).to(p.of.dtype)
        values, meta = compress(weights)
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated // p.of.weight_bytes(p))))
        return SparseOperands(
            workload=p,
            out=torch.empty((p.m, p.n), dtype=torch.bfloat16, device=self._device),
            a=self._numbers(p, p.m),
            dense=tuple(weights.clone() for _ in range(count)),
            values=tuple(values.clone() for _ in range(count)),
            meta=tuple(meta.clone() for _ in range(count)),
            one=torch.ones(1, device=self._device),
        )

    def _numbers(self, p: Workload, rows: int) -> Tensor:
        shape = (rows, p.k)
        if p.of.dtype is torch.int8:
            whole = torch.randint(-128, 128, shape, device=self._device, generator=self._generator)
            return whole.to(torch.int8)
        return torch.randn(shape, device=self._device, generator=self._generator).to(p.of.dtype)


def workloads_of(options: Namespace) -> list[Workload]:
    """Every kind at every size. Raises ValueError."""
    kinds = options.op.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"op {unknown[0]!r} is none of {', '.join(KINDS)}")
    if options.draw is not None:
        sizes = list(_drawn(Random(options.draw), options.draws))
        return [KINDS[kind].at(m=m, n=n, k=k) for m, n, k in sizes for kind in kinds]
    return list(_workloads(kinds, [int(m) for m in options.rows.split(",") if m]))


def _drawn(random: Random, count: int) -> Iterator[tuple[int, int, int]]:
    """So many sizes, log-uniform."""
    while count:
        m, n, k = (
            step * round(least * (most / least) ** random.random() / step)
            for (least, most), step in ((DRAWN_ROWS, ROW_STEP), (DRAWN_SIDES, SIDE_STEP), (DRAWN_SIDES, SIDE_STEP))
        )
        if DRAWN_WEIGHTS[0] <= n * k <= DRAWN_WEIGHTS[1]:
            count -= 1
            yield m, n, k


def _workloads(kinds: Sequence[str], rows: Sequence[int]) -> Iterator[Workload]:
    for kind in kinds:
        for m, n, k in TABLE:
            if not rows or m in rows:
                yield KINDS[kind].at(m=m, n=n, k=k)


def add_options(parser: ArgumentParser) -> None:
    """Of the sparse GEMMs alone."""
    known = ",".join(KINDS)
    parser.add_argument("--op", "--ops", default=known, help=f"kinds, with commas, of {known}")
    parser.add_argument("--rows", default="", help="M, with commas; all of the table by default")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw sizes in place of the table's")
    parser.add_argument("--draws", type=int, default=12, help="how many are drawn")


def tiny(workload: Workload) -> Workload:
    m, n, k = TINY
    return workload.resized(m=min(workload.m, m), n=n, k=k)
