"""The flat table that the extension selects from: one row for each variant and class of calls it serves."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.manifest import KernelEntry
from gemmill.runtime.problem import problems_of
from gemmill.runtime.tuned import TunedChoice
from gemmill.vocab import Accumulation, Backend, KernelSchedule, RasterOrder, TileScheduler

_RASTER_CODES = {RasterOrder.HEURISTIC: 0, RasterOrder.ALONG_M: 1, RasterOrder.ALONG_N: 2}
_WITHOUT_TMA_PERMILLE = 12_000
"""What the model does not know: without TMA and WGMMA a kernel is far behind. An assumption, large enough that the fallback
is chosen only where nothing else fits."""
_CUTLASS_PERMILLE = 1_053
"""Nor that CUTLASS's kernels take longer than the CuTe DSL's of the same tile: fitted with the model."""

_MOST_CTAS = 4
_SHARED_BYTES = 227 * 1024


class Row(ctypes.Structure):
    """Mirrors `Row` in kernels/extension/selection.h."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "kernel problem align_a align_b align_d min_k max_mnk raster_order swizzle splits workspace tile_m tile_n tile_k "
            "columns sharers_a sharers_b pads ctas_of_sm overlaps promotes divides_k cost_permille"
        ).split()
    ]


class TunedRow(ctypes.Structure):
    """Mirrors `TunedRow` in kernels/extension/selection.h."""

    _fields_ = [(name, ctypes.c_int64) for name in "problem n k m row exact".split()]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows with the entry that each stands for, and the measured choices among them."""

    rows: tuple[Row, ...]
    entries: tuple[KernelEntry, ...]
    """Of each row."""
    tuned: tuple[TunedRow, ...]

    def rows_of(self, name: str) -> list[int]:
        """Indices of a variant's rows: neighbours, in the order of its classes."""
        return [i for i, entry in enumerate(self.entries) if entry.name == name]


def make_table(entries: Iterable[KernelEntry], kernels: Sequence[str], tuned: Iterable[TunedChoice]) -> Table:
    """The table for the kernels of an extension, `kernels` being their symbols in its order."""
    index = {symbol: i for i, symbol in enumerate(kernels)}
    rows, owners = [], []
    for entry in entries:
        if entry.family != scaled_mm.NAME:
            continue
        for problem in problems_of(entry.predicate):
            rows.append(_row(entry, index[entry.symbol], problem))
            owners.append(entry)
    return Table(rows=tuple(rows), entries=tuple(owners), tuned=_tuned_rows(tuned, rows, owners))


def _row(entry: KernelEntry, kernel: int, problem: int) -> Row:
    p, s, launch = entry.predicate, entry.config.schedule, entry.config.launch
    tile_m, tile_n, tile_k = s.tile_shape_mnk
    cluster_m, cluster_n, _ = s.cluster_shape_mnk
    columns = tile_n
    if s.swap_ab:
        tile_m, tile_n = tile_n, tile_m
        cluster_m, cluster_n = cluster_n, cluster_m
    return Row(
        kernel=kernel,
        problem=problem,
        align_a=p.alignment_a * p.a_dtype.bits // 8,
        align_b=p.alignment_b * p.b_dtype.bits // 8,
        align_d=p.alignment_d * p.out_dtype.bits // 8,
        min_k=p.min_k,
        max_mnk=p.max_mnk,
        raster_order=_RASTER_CODES[launch.raster_order],
        swizzle=launch.swizzle,
        splits=launch.splits,
        workspace=int(s.tile_scheduler is TileScheduler.STREAM_K),
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k * p.a_dtype.bits // 8,
        columns=columns,
        sharers_a=cluster_n,
        sharers_b=cluster_m,
        pads=int(_has_cutlass_scheduler(entry.config)),
        ctas_of_sm=_ctas_of_sm(entry.config),
        overlaps=int(s.kernel_schedule is KernelSchedule.PINGPONG),
        promotes=int(s.accumulation is Accumulation.PROMOTED or entry.config.problem.group_size > 0),
        divides_k=int(s.tile_scheduler is TileScheduler.SPLIT_K),
        cost_permille=_cost_permille(entry.config),
    )


def _cost_permille(config: KernelConfig) -> int:
    if not config.schedule.kernel_schedule.uses_tma:
        return _WITHOUT_TMA_PERMILLE
    return _CUTLASS_PERMILLE if config.backend is Backend.CUTLASS else 1000


def _has_cutlass_scheduler(config: KernelConfig) -> bool:
    s = config.schedule
    own_kernel = not s.kernel_schedule.uses_tma or s.tile_scheduler is TileScheduler.SPLIT_K
    return config.backend is Backend.CUTLASS and not own_kernel


def _ctas_of_sm(config: KernelConfig) -> int:
    """How many CTAs shared memory leaves room for, as far as the model cares: the DSL's kernels fill it with their stages
    unless they are told a number of them."""
    s = config.schedule
    if not s.kernel_schedule.uses_tma:
        return 1
    tile_m, tile_n, tile_k = s.tile_shape_mnk
    stage = (tile_m + tile_n) * tile_k * config.problem.a_dtype.bits // 8
    if s.stages is not None and (config.backend is Backend.CUTLASS or s.kernel_schedule is KernelSchedule.BASIC):
        return max(1, min(_MOST_CTAS, _SHARED_BYTES // (stage * s.stages + 4096)))
    if s.kernel_schedule is KernelSchedule.BASIC and config.backend is Backend.CUTLASS:
        return max(1, min(_MOST_CTAS, _SHARED_BYTES // (stage * 3 + 8192)))
    return 1


def _tuned_rows(
    tuned: Iterable[TunedChoice], rows: Sequence[Row], owners: Sequence[KernelEntry]
) -> tuple[TunedRow, ...]:
    place = {(row.problem, entry.name): i for i, (row, entry) in enumerate(zip(rows, owners, strict=True))}
    result = []
    for choice in tuned:
        row = next((place[choice.problem, name] for name in choice.names if (choice.problem, name) in place), None)
        if row is not None:
            place_of = {"problem": choice.problem, "n": choice.n, "k": choice.k, "m": choice.m}
            result.append(TunedRow(**place_of, row=row, exact=int(choice.exact)))
    result.sort(key=lambda r: (r.problem, r.n, r.k, r.m))
    return tuple(result)
