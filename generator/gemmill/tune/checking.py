"""A time is worth nothing if the result is wrong: results are held against the reference, and memory around them watched.

Of a result, whole rows are held against the reference: the first and last ones, and one of every 16 (of many rows: of
every 64), so that every tile of a kernel is looked at. Calling twice and comparing all of both results finds what those
rows miss. Sums of floating-point operands are held against the reference of exact operands besides, whose results no right
kernel rounds before it stores them: of a long K the tolerance of random ones hides what is missing.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from gemmill.families.scaled_mm.bounds import exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.numerics.comparison import Comparison, compare_exact, compare_within
from gemmill.tune.operands import Operands
from gemmill.vocab import Accumulation

EDGE_ROWS = 8
STRIPE, LARGE_STRIPE, MANY_ROWS = 16, 64, 4096
"""Rows: no tile has fewer than 16 and none begins within a stripe, so each has a row that is looked at. Kernels whose tiles
have fewer than 64 are made for few rows."""
GUARD_BYTES = 1 << 20
GUARD = 0xA5
PAD = 64
"""Elements between the rows of the second call's output."""


class Fault(StrEnum):
    """What is wrong with a candidate; it is not timed, and never chosen."""

    CRASH = "crash"
    """its process or its CUDA context died"""
    HANG = "hang"
    """it did not answer in time"""
    REFUSED = "refused"
    """it raised an error"""
    NAN = "nan"
    """NaN where the reference has none: most often elements that were never written"""
    WRONG = "wrong"
    """elements beyond the op's tolerance"""
    OUT_OF_BOUNDS = "out of bounds"
    """it wrote outside its output or workspace"""
    NOT_REPEATABLE = "not repeatable"
    """the same call gave another result"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault and a sentence about it."""

    fault: Fault
    detail: str


class Reference:
    """The reference of some rows of one problem with its first weights, made once for all candidates."""

    def __init__(self, operands: Operands, scales_per_tensor: bool = False) -> None:
        x, b = operands, operands.weights[0]
        self.rows = sampled_rows(x.problem.m, b.device)
        a = _take(x.a, self.rows)
        a_scales, b_scales = (x.a_scale, x.b_scale) if scales_per_tensor else (x.a_scales, x.b_scales)
        if a_scales.numel() > 1:
            a_scales = a_scales[self.rows]
        azp = None if x.azp is None else x.azp[self.rows]
        self._rounded = scaled_mm(a, b, a_scales, b_scales, x.out.dtype, azp_adj=x.azp_adj[0], azp=azp)
        self._bound = None
        self._with = " with small integers" if x.exact else ""
        if a.dtype.is_floating_point and not x.exact:
            self._exact = exact_scaled_mm(a, b, a_scales, b_scales)
            self._bound = tolerance(a, b, a_scales, b_scales, x.out.dtype, Accumulation.FAST)

    def compare(self, result: Tensor) -> Comparison:
        """Hold a whole result [M, N] against the reference's rows."""
        found = result[self.rows]
        if self._bound is None:
            return compare_exact(found, self._rounded)
        return compare_within(found, self._rounded, self._exact, self._bound)

    def judge(self, result: Tensor) -> Finding | None:
        """What is wrong with a result, if anything is."""
        comparison = self.compare(result)
        if comparison.ok:
            return None
        unwritten = result[self.rows].isnan() & ~self._rounded.isnan()
        fault = Fault.NAN if bool(unwritten.any()) else Fault.WRONG
        return Finding(fault=fault, detail=f"of the rows looked at{self._with}, {comparison.report}")


def sampled_rows(m: int, device: torch.device) -> Tensor:
    """Sorted rows of m: all of few, else the edges and one of every stripe, another in each."""
    stripe = STRIPE if m <= MANY_ROWS else LARGE_STRIPE
    if m <= 2 * LARGE_STRIPE:
        return torch.arange(m, device=device)
    edges = [*range(EDGE_ROWS), *range(m - EDGE_ROWS, m)]
    inside = [min(start + 37 * (start // stripe) % stripe, m - 1) for start in range(0, m, stripe)]
    return torch.tensor(sorted({*edges, *inside}), device=device)


def _take(matrix: Tensor, rows: Tensor) -> Tensor:
    """matrix[rows]; as bytes, because not every torch can index FP8 tensors."""
    return matrix.view(torch.uint8)[rows].view(matrix.dtype)


class GuardedOutput:
    """An output [M, N] with guard bytes before, behind and, if padded, between its rows."""

    def __init__(self, m: int, n: int, dtype: torch.dtype, device: torch.device, pad: int = 0) -> None:
        self._row_bytes, self._pad_bytes = n * dtype.itemsize, pad * dtype.itemsize
        body = m * (self._row_bytes + self._pad_bytes)
        self._memory = torch.full((body + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
        self._body = self._memory[GUARD_BYTES : GUARD_BYTES + body].view(m, -1)
        self.out = self._body.view(dtype)[:, :n]

    def is_intact(self) -> bool:
        """Whether no guard byte has changed."""
        bands = (self._memory[:GUARD_BYTES], self._memory[-GUARD_BYTES:], self._body[:, self._row_bytes :])
        return all(bool((band == GUARD).all()) for band in bands)


class GuardedArena:
    """Memory for a workspace, with guard bytes before it and behind what of it is used."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.used = 0
        self._memory = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=device)

    @property
    def address(self) -> int:
        """Where a workspace begins."""
        return self._memory.data_ptr() + GUARD_BYTES

    def reset(self) -> None:
        """Poison all of it: what a kernel reads before it writes is no zero."""
        self.used = 0
        self._memory.fill_(GUARD)

    def is_intact(self) -> bool:
        """Whether nothing was written around the bytes that the last workspace had, `used`."""
        bands = (self._memory[:GUARD_BYTES], self._memory[GUARD_BYTES + self.used :])
        return all(bool((band == GUARD).all()) for band in bands)
