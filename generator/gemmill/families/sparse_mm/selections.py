"""The sparse GEMMs of the named selections."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.gemm.config import RESULTS_OF
from gemmill.vocab import Accumulation, Arch, DType, EpilogueKind, KernelSchedule, RasterOrder

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
Candidate = tuple[tuple[int, int, int], tuple[int, int, int], KernelSchedule, tuple[int, ...]]
"""A tile, a cluster, a schedule, and widths of bands."""
_OF_8_BITS: tuple[Candidate, ...] = (
    ((64, 16, 256), (1, 1, 1), BASIC, (1,)),
    ((64, 64, 256), (1, 1, 1), BASIC, (1,)),
    ((128, 128, 128), (2, 1, 1), PINGPONG, (1,)),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
)
_OF_16_BITS: tuple[Candidate, ...] = (
    ((64, 16, 256), (1, 1, 1), BASIC, (1,)),
    ((128, 128, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
)
_WIDER_OF_8_BITS: tuple[Candidate, ...] = (
    ((64, 16, 512), (1, 1, 1), BASIC, (1,)),
    ((256, 128, 128), (1, 2, 1), COOPERATIVE, (1, 8)),
    ((256, 192, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 128, 256), (1, 2, 1), PINGPONG, (1, 8)),
)
_WIDER_OF_16_BITS: tuple[Candidate, ...] = (
    ((64, 64, 128), (1, 1, 1), BASIC, (1,)),
    ((256, 128, 128), (1, 2, 1), COOPERATIVE, (1, 8)),
)
_TRIED_OF_8_BITS: tuple[Candidate, ...] = (
    ((64, 256, 128), (2, 1, 1), PINGPONG, (1, 8)),
    ((64, 256, 128), (1, 2, 1), PINGPONG, (1, 8)),
    ((64, 256, 256), (2, 1, 1), PINGPONG, (1, 8)),
    ((128, 256, 128), (1, 2, 1), COOPERATIVE, (1, 8)),
    ((256, 128, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 256, 256), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 192, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 128, 128), (1, 2, 1), PINGPONG, (1, 8)),
)
_TRIED_OF_16_BITS: tuple[Candidate, ...] = (
    ((64, 256, 128), (2, 1, 1), PINGPONG, (1, 8)),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((256, 128, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 192, 128), (2, 1, 1), COOPERATIVE, (1, 8)),
    ((128, 128, 128), (2, 1, 1), PINGPONG, (1, 8)),
    ((128, 128, 128), (1, 2, 1), COOPERATIVE, (1, 8)),
)
_RASTERED_OF_8_BITS: tuple[Candidate, ...] = (
    ((128, 256, 128), (2, 1, 1), COOPERATIVE, (1, 2, 4, 8)),
    ((64, 256, 128), (2, 1, 1), PINGPONG, (2, 4, 8)),
)
_RASTERED_OF_16_BITS: tuple[Candidate, ...] = (((128, 128, 128), (2, 1, 1), COOPERATIVE, (1, 2, 4, 8)),)
_STAGED: tuple[tuple[Candidate, int], ...] = (
    (((64, 16, 256), (1, 1, 1), BASIC, (1,)), 7),
    (((64, 16, 256), (1, 1, 1), BASIC, (1,)), 5),
    (((64, 16, 512), (1, 1, 1), BASIC, (1,)), 3),
    (((64, 16, 256), (2, 1, 1), BASIC, (1,)), 7),
)
"""Kernels for few rows whose stages leave room for the next kernel's CTA on the same multiprocessor."""
_PROMOTED: Candidate = ((64, 64, 256), (1, 1, 1), BASIC, (1,))


def sweep(arch: Arch) -> Iterator[SparseConfig]:
    """All kernels that are worth timing for bf16 results, also with promoted sums, and the rest of the default
    selection."""
    if arch is not Arch.SM90A:
        return
    found = list(default(arch))
    for dtype in (DType.E4M3, DType.S8, DType.BF16):
        for candidate in _WIDER_OF_8_BITS if dtype.bits == 8 else _WIDER_OF_16_BITS:
            found += configs(dtype, DType.BF16, candidate)
        for candidate in _TRIED_OF_8_BITS if dtype.bits == 8 else _TRIED_OF_16_BITS:
            found += configs(dtype, DType.BF16, candidate)
        for candidate in _RASTERED_OF_8_BITS if dtype.bits == 8 else _RASTERED_OF_16_BITS:
            for order in (RasterOrder.ALONG_M, RasterOrder.ALONG_N):
                found += [replace(c, raster_order=order) for c in configs(dtype, DType.BF16, candidate)]
        for candidate, stages in _STAGED if dtype.bits == 8 else ():
            found += [replace(c, stages=stages) for c in configs(dtype, DType.BF16, candidate)]
    found += [replace(c, accumulation=Accumulation.PROMOTED) for c in configs(DType.E4M3, DType.BF16, _PROMOTED)]
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
    """A kernel with a tile for few rows from e4m3 to bf16, and one for many rows of s8."""
    if arch is not Arch.SM90A:
        return
    yield from configs(DType.E4M3, DType.BF16, _OF_8_BITS[0])
    yield from configs(DType.S8, DType.BF16, _OF_8_BITS[2])


def configs(dtype: DType, out: DType, candidate: Candidate) -> Iterator[SparseConfig]:
    """The configs of a candidate, with the epilogue that serves all calls of the dtype."""
    tile, cluster, schedule, swizzles = candidate
    for swizzle in swizzles:
        yield SparseConfig(
            dtype=dtype,
            out_dtype=out,
            epilogue=EpilogueKind.SCALED_AZP_PER_TOKEN if dtype is DType.S8 else EpilogueKind.SCALED_BIAS,
            tile_shape_mnk=tile,
            cluster_shape_mnk=cluster,
            kernel_schedule=schedule,
            accumulation=Accumulation.EXACT if dtype is DType.S8 else Accumulation.FAST,
            raster_order=RasterOrder.HEURISTIC,
            swizzle=swizzle,
        )
