"""The calls that verify a sparse GEMM."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from typing import Any

import torch

from gemmill.families.sparse_mm.cases.calls import CallSpec, arguments_of, make_given, torch_type, wanted_of
from gemmill.families.sparse_mm.classes import Need, needs_of
from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.numerics.cases import CaseOutcome, SpecCase, outcome_of, result_memory
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import Accumulation, DType

SHAPES = ((1, 16, 32), (3, 48, 160), (16, 264, 512), (65, 136, 288), (130, 272, 1056), (257, 520, 2080))
"""M, N and K below, at and across tile edges. K ends within blocks of metadata."""
LONG_SHAPES = ((33, 136, 4096), (17, 264, 14336), (9, 72, 32768))
"""M, N and K for exact operands. For so long a K the bound on sums of random operands hides missing products."""
CASES_OF_A_SHAPE = 3
PAD = 16
QUICK_SHAPE = (33, 64, 128)


@dataclass(frozen=True, kw_only=True)
class SparseCase(SpecCase):
    """A call spec with its computation and comparison."""

    spec: CallSpec

    def arguments(self, device: str) -> list[Any]:
        """Arguments in the order of the op's schema. The result holds poison."""
        return self._made(device)[2]

    def _made(self, device: str) -> tuple[dict[str, Any], Memory, list[Any]]:
        p, where = self.spec, torch.device(device)
        given = make_given(p, where)
        memory = result_memory(torch_type(p.out_dtype), (p.m, p.n), p.pad, where)
        return given, memory, arguments_of(p.op, given, memory.tensor("out"))

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference."""
        p = self.spec
        given, memory, arguments = self._made(device)
        wanted = wanted_of(given, torch_type(p.out_dtype), exactly=p.is_exact, promoted=p.promoted)
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*arguments)
        return outcome_of(wanted.compare(memory.tensor("out")), memory)


def of_config(config: SparseConfig) -> Iterator[SparseCase]:
    """The cases of a variant: shapes below, at and across tiles, over all needs, kinds of scales and layouts."""
    first = _first(config)
    kinds = cycle(product((0, PAD), (True, False), (True, False), needs_of(config.epilogue)))
    tile_n, tile_m, _ = config.design.tile_shape_mnk
    own = ((tile_m, tile_n, 256), (2 * tile_m + 1, 3 * tile_n + 8, 384))
    for m, n, k in (*SHAPES, *own, *LONG_SHAPES):
        is_long = (m, n, k) in LONG_SHAPES
        for pad, a_each, b_each, need in islice(kinds, 1 if is_long else CASES_OF_A_SHAPE):
            # The other half of kinds has the bias in addition to zero points.
            bias = need in (Need.AZP_ROW, Need.AZP_TOKEN) and a_each
            data = "integers" if is_long or (m, n, k) in own else "random"
            spec = replace(first, m=m, n=n, k=k, need=need, bias=bias, a_each=a_each, b_each=b_each, pad=pad, data=data)
            yield SparseCase(spec=spec)


def sized(config: SparseConfig, sizes: Mapping[str, int]) -> SparseCase:
    """A call of exact operands."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    return SparseCase(spec=replace(_first(config), m=m, n=n, k=k, data="integers"))


def _first(config: SparseConfig) -> CallSpec:
    return CallSpec(
        m=1,
        n=16,
        k=32,
        dtype=config.operand_dtype,
        out_dtype=config.out_dtype,
        promoted=config.design.accumulation is Accumulation.PROMOTED,
    )


def once() -> Iterator[tuple[str, SparseCase]]:
    """Each op, once for each dtype of operands that the smoke selection has."""
    m, n, k = QUICK_SHAPE
    for dtype, need in ((DType.E4M3, Need.BIAS), (DType.S8, Need.BIAS), (DType.S8, Need.AZP_TOKEN)):
        spec = CallSpec(m=m, n=n, k=k, dtype=dtype, need=need)
        yield f"{spec.op} {dtype}", SparseCase(spec=spec)
