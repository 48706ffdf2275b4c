"""The sparse GEMMs of the named selections."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemmill.families.sparse_mm.config import Operands, SparseConfig
from gemmill.gemm.config import RESULTS_OF, Design
from gemmill.vocab import Accumulation, Arch, DType, EpilogueKind, KernelSchedule, RasterOrder, TileScheduler

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
STREAM_K = TileScheduler.STREAM_K
_M, _N, _ANY = RasterOrder.ALONG_M, RasterOrder.ALONG_N, RasterOrder.HEURISTIC


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Kernels of one tile that differ in nothing but settings of their launch."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    schedule: KernelSchedule
    stages: int | None = None
    accumulation: Accumulation | None = None
    """None: of integers exact, else fast."""
    orders: tuple[RasterOrder, ...] = (_ANY,)
    swizzles: tuple[int, ...] = (1,)
    """Widths of bands."""
    scheduler: TileScheduler = TileScheduler.PERSISTENT


_FEW = Candidate(tile=(64, 16, 512), schedule=BASIC, stages=3)
"""For a small M of 8 bits. Its stages leave room for the next kernel's CTA on the same multiprocessor
(docs/notes/sparse_mm.md).
"""
_SQUARE = Candidate(tile=(128, 128, 128), cluster=(2, 1, 1), schedule=PINGPONG)
_OF_8_BITS = (
    _FEW,
    Candidate(tile=(64, 64, 256), schedule=BASIC),
    Candidate(tile=(128, 64, 256), cluster=(2, 1, 1), schedule=PINGPONG),
    Candidate(tile=(128, 96, 256), cluster=(2, 1, 1), schedule=PINGPONG),
    _SQUARE,
    Candidate(tile=(128, 192, 128), cluster=(2, 1, 1), schedule=COOPERATIVE),
    Candidate(tile=(128, 256, 128), cluster=(2, 1, 1), schedule=COOPERATIVE),
    Candidate(tile=(128, 256, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, orders=(_M,), swizzles=(4,)),
)
_OF_16_BITS = (
    Candidate(tile=(64, 16, 256), schedule=BASIC),
    Candidate(tile=(64, 64, 128), schedule=BASIC),
    Candidate(tile=(128, 64, 128), cluster=(2, 1, 1), schedule=PINGPONG),
    Candidate(tile=(128, 128, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, scheduler=STREAM_K),
    Candidate(tile=(128, 128, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, swizzles=(1, 8)),
    Candidate(tile=(256, 128, 128), cluster=(2, 1, 1), schedule=COOPERATIVE),
)
_WIDER_OF_8_BITS = (
    Candidate(tile=(64, 16, 256), schedule=BASIC),
    *(Candidate(tile=(64, 16, 256), schedule=BASIC, stages=stages) for stages in (5, 7)),
    Candidate(tile=(64, 16, 256), cluster=(2, 1, 1), schedule=BASIC, stages=7),
    Candidate(tile=(64, 16, 512), schedule=BASIC),
    Candidate(tile=(128, 256, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, orders=(_ANY, _M, _N), swizzles=(1, 8)),
    Candidate(tile=(128, 256, 128), cluster=(1, 2, 1), schedule=COOPERATIVE, swizzles=(1, 8)),
    Candidate(tile=(256, 128, 128), cluster=(1, 2, 1), schedule=COOPERATIVE, swizzles=(1, 8)),
    Candidate(tile=(256, 192, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, swizzles=(1, 8)),
    Candidate(tile=(128, 128, 256), cluster=(1, 2, 1), schedule=PINGPONG, swizzles=(1, 8)),
    Candidate(tile=(64, 256, 128), cluster=(2, 1, 1), schedule=PINGPONG, swizzles=(1, 8)),
)
_WIDER_OF_16_BITS = (
    Candidate(tile=(256, 128, 128), cluster=(2, 1, 1), schedule=COOPERATIVE, scheduler=STREAM_K),
    Candidate(tile=(256, 128, 128), cluster=(1, 2, 1), schedule=COOPERATIVE, swizzles=(1, 8)),
    Candidate(tile=(128, 192, 128), cluster=(2, 1, 1), schedule=COOPERATIVE),
    Candidate(tile=(128, 128, 128), cluster=(2, 1, 1), schedule=PINGPONG, swizzles=(1, 8)),
)
_PROMOTED = Candidate(tile=(64, 64, 256), schedule=BASIC, accumulation=Accumulation.PROMOTED)


def sweep(arch: Arch) -> Iterator[SparseConfig]:
    """All kernels worth timing for bf16 results, also with promoted sums, and the rest of the default selection."""
    if arch is not Arch.SM90A:
        return
    found = list(default(arch))
    for dtype in (DType.E4M3, DType.S8, DType.BF16):
        for candidate in _WIDER_OF_8_BITS if dtype.bits == 8 else _WIDER_OF_16_BITS:
            found += configs(dtype, DType.BF16, candidate)
    found += configs(DType.E4M3, DType.BF16, _PROMOTED)
    yield from dict.fromkeys(found)


def default(arch: Arch) -> Iterator[SparseConfig]:
    """The default kernels, for all operands, on sm90a."""
    if arch is not Arch.SM90A:
        return
    for dtype, results in RESULTS_OF.items():
        table = _OF_8_BITS if dtype.bits == 8 else _OF_16_BITS
        for out in results:
            few = table if out is DType.BF16 or len(results) == 1 else (table[0], table[-1])
            for candidate in few:
                yield from configs(dtype, out, candidate)


def smoke(arch: Arch) -> Iterator[SparseConfig]:
    """One kernel, of s8: it serves both ops, and no kernel takes a compiler longer (docs/notes/make_test.md)."""
    if arch is Arch.SM90A:
        yield from configs(DType.S8, DType.BF16, _SQUARE)


def configs(dtype: DType, out: DType, candidate: Candidate) -> Iterator[SparseConfig]:
    """The configs of a candidate, with the epilogue that serves all calls of the dtype."""
    design = Design(
        tile_shape_mnk=candidate.tile,
        cluster_shape_mnk=candidate.cluster,
        kernel_schedule=candidate.schedule,
        accumulation=candidate.accumulation or (Accumulation.EXACT if dtype is DType.S8 else Accumulation.FAST),
        swap_ab=True,
        stages=candidate.stages,
        tile_scheduler=candidate.scheduler,
    )
    for order, swizzle in product(candidate.orders, candidate.swizzles):
        yield SparseConfig(
            operands=Operands(dtype=dtype, out_dtype=out),
            design=design,
            epilogue=EpilogueKind.SCALED_AZP_PER_TOKEN if dtype is DType.S8 else EpilogueKind.SCALED_BIAS,
            raster_order=order,
            swizzle=swizzle,
        )
