"""The GEMMs of the named selections."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from gemmill.families.scaled_mm.candidates import sm90, sm90_cutedsl
from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, Design, KernelConfig, Launch, Operands
from gemmill.families.scaled_mm.own import BUILT_IN, OWN_RESULTS_OF, with_own
from gemmill.family.operand import TMA_BYTES
from gemmill.gemm.traced import of_text
from gemmill.vocab import (
    SCALE_GROUPS,
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    RasterOrder,
    ScaleGranularity,
    ScaleGroups,
    ScaleLayout,
    TileScheduler,
)

FINE_BLOCKS = next(groups for groups in SCALE_GROUPS if groups.size == 32 and groups.b_scale is ScaleGranularity.BLOCK)
"""DeepSeek V4.1's groups."""
OUT_DTYPES = (DType.BF16, DType.F16)
PLAIN_DTYPES = tuple(dtype for dtype in RESULTS_OF if dtype.bits == 16)
"""Dtypes of unquantised operands. Results have the same dtype."""


class Gemm(NamedTuple):
    """The computation of a kernel."""

    operands: Operands
    epilogue: EpilogueKind


def _gemm(operand: DType, out: DType, epilogue: EpilogueKind = EpilogueKind.SCALED_BIAS, **scales: Any) -> Gemm:
    accumulator = ACCUMULATOR_OF[operand]
    operands = Operands(a_dtype=operand, b_dtype=operand, accumulator_dtype=accumulator, out_dtype=out, **scales)
    return Gemm(operands, epilogue)


def _in_groups(operand: DType, out: DType, groups: ScaleGroups, layout: ScaleLayout) -> Gemm:
    a_scale = ScaleGranularity.GROUP
    return _gemm(operand, out, a_scale=a_scale, b_scale=groups.b_scale, scale_layout=layout, group_size=groups.size)


def _accumulation(operands: Operands) -> Accumulation:
    if not operands.a_dtype.is_float:
        return Accumulation.EXACT
    return Accumulation.PROMOTED if operands.group_size else Accumulation.FAST


def _config(
    gemm: Gemm, row: sm90.Row, arch: Arch = Arch.SM90A, launch: Launch | None = None, **schedule: Any
) -> KernelConfig:
    """The config of a row, with TMA for rows and sums in the tensor core, unless `schedule` says otherwise."""
    tile, cluster, kernel_schedule = row
    settings: dict[str, Any] = {
        "tile_shape_mnk": tile,
        "cluster_shape_mnk": cluster,
        "kernel_schedule": kernel_schedule,
        "accumulation": _accumulation(gemm.operands),
        "alignment_a": TMA_BYTES * 8 // gemm.operands.a_dtype.bits,
        "alignment_b": TMA_BYTES * 8 // gemm.operands.b_dtype.bits,
    }
    return KernelConfig(
        operands=gemm.operands,
        design=Design(**(settings | schedule)),
        epilogue=gemm.epilogue,
        launch=launch or Launch(),
        arch=arch,
    )


def _unaligned(gemm: Gemm, arch: Arch = Arch.SM90A) -> KernelConfig:
    rows, columns, depth = sm90.UNALIGNED_TILE
    tile = rows, columns, min(depth, gemm.operands.group_size or depth)
    row = (tile, (1, 1, 1), KernelSchedule.MMA_SYNC)
    accumulation = Accumulation.PROMOTED if gemm.operands.a_dtype is DType.E4M3 else _accumulation(gemm.operands)
    return _config(gemm, row, arch, accumulation=accumulation, alignment_a=1, alignment_b=1, alignment_d=1)


def _split_k(
    gemm: Gemm, tile: tuple[int, int, int], schedule: KernelSchedule, stages: int, splits: int
) -> KernelConfig:
    row, scheduler = (tile, (1, 1, 1), schedule), TileScheduler.SPLIT_K
    return _config(gemm, row, swap_ab=True, tile_scheduler=scheduler, stages=stages, launch=Launch(splits=splits))


def _few_rows(gemm: Gemm, tile: tuple[int, int, int], schedule: KernelSchedule, stages: int) -> KernelConfig:
    return _config(gemm, (tile, (1, 1, 1), schedule), swap_ab=True, stages=stages, main_loop=MainLoop.FEW_ROWS)


def _gemms(outs: Iterable[DType]) -> Iterator[Gemm]:
    """The GEMMs of results, with epilogues that between them serve every call. Each reads an absent operand as
    zero."""
    for out in outs:
        yield _gemm(DType.E4M3, out)
        yield _gemm(DType.S8, out)
        yield _gemm(DType.S8, out, EpilogueKind.SCALED_AZP_PER_TOKEN)


def smoke(arch: Arch) -> Iterator[KernelConfig]:
    """One kernel for each op and operand type, so that every call has an answer: minutes to build."""
    prefill = ((128, 128, 128), (2, 1, 1), KernelSchedule.PINGPONG)
    if arch is not Arch.SM90A:
        yield _config(
            _gemm(DType.E4M3, DType.BF16),
            (prefill[0], (1, 1, 1), KernelSchedule.COOPERATIVE),
            arch,
        )
        return
    decode = _gemm(DType.E4M3, DType.BF16)
    # One of CUTLASS's kernels with TMA: each takes 10 to 20 CPU seconds, and int8 has the CuTe DSL's and those of any stride.
    yield _config(decode, prefill)
    yield from (with_dsl(_config(gemm, prefill)) for gemm in _gemms((DType.BF16,)))
    for splits in (1, 4):
        yield _split_k(decode, (64, 16, 256), KernelSchedule.BASIC, 4, splits)
    yield with_dsl(_split_k(decode, (64, 16, 256), KernelSchedule.BASIC, 4, 4))
    for built_in in BUILT_IN.values():
        made = list(with_epilogue(built_in.traced.text, built_in.operands[:1], (DType.BF16,), arch))
        yield from (next(config for config in made if config.backend is backend) for backend in Backend)
    for gemm in _gemms(OUT_DTYPES):
        yield _unaligned(gemm)
    yield with_dsl(_config(_gemm(DType.BF16, DType.BF16), sm90_cutedsl.PLAIN.wide[0]))
    for dtype in PLAIN_DTYPES:
        yield _unaligned(_gemm(dtype, dtype))
    blocks = _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], ScaleLayout.STRIDED)
    yield with_dsl(_split_k(blocks, (64, 16, 256), KernelSchedule.BASIC, 4, 2))
    yield _unaligned(blocks)


def sweep(arch: Arch) -> Iterator[KernelConfig]:
    """Everything worth timing among GEMMs for bf16 results with the full epilogues."""
    if arch is not Arch.SM90A:
        yield from smoke(arch)
        return
    for gemm in _gemms((DType.BF16,)):
        yield from _kernels(gemm, sm90.WIDEST)
        for row in sm90.STREAM_K:
            yield _config(gemm, row, swap_ab=True, tile_scheduler=TileScheduler.STREAM_K)
        yield _unaligned(gemm)
        yield from _dsl_kernels(gemm, sm90_cutedsl.WIDEST)
    yield from _dsl_kernels(_gemm(DType.BF16, DType.BF16), sm90_cutedsl.PLAIN_WIDEST)
    yield from _kernels(_gemm(DType.BF16, DType.BF16), sm90.PLAIN)
    yield _unaligned(_gemm(DType.BF16, DType.BF16))
    blocks = _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], ScaleLayout.STRIDED)
    by_columns = _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], ScaleLayout.MN_MAJOR)
    yield from _dsl_kernels(blocks, sm90_cutedsl.GROUP_WIDEST)
    fine = _in_groups(DType.E4M3, DType.BF16, FINE_BLOCKS, ScaleLayout.STRIDED)
    yield from _dsl_kernels(fine, sm90_cutedsl.GROUP_32_WIDEST)
    yield _unaligned(blocks)
    for gemm, row in product((by_columns, blocks), sm90.BLOCKWISE):
        yield _config(gemm, row)


def default(arch: Arch) -> Iterator[KernelConfig]:
    """The kernels of the default selection: on sm90a chosen from the sweep by measurement (docs/notes/tables.md)."""
    if arch is not Arch.SM90A:
        yield from smoke(arch)
        if arch is Arch.SM120F:
            yield from _of_any_alignment(arch)
        return
    for gemm in _gemms(OUT_DTYPES):
        frequent = gemm.operands.out_dtype is DType.BF16
        if frequent:
            yield from _kernels(gemm, sm90.BESIDE_DSL if gemm.operands.a_dtype.is_float else sm90.BESIDE_DSL_FOR_INT8)
        core = sm90_cutedsl.E4M3 if gemm.operands.a_dtype.is_float else sm90_cutedsl.INT8
        yield from _dsl_kernels(gemm, core if frequent else sm90_cutedsl.FEW)
    for dtype in PLAIN_DTYPES:
        yield from _dsl_kernels(_gemm(dtype, dtype), sm90_cutedsl.BF16 if dtype is DType.BF16 else sm90_cutedsl.PLAIN)
    for gemm in _gemms_in_groups():
        if (tables := _tables_in_groups(gemm)) is not None:
            yield from _dsl_kernels(gemm, tables)
    for built_in in BUILT_IN.values():
        made = list(with_epilogue(built_in.traced.text, built_in.operands, OUT_DTYPES, arch))
        yield from (config for config in made if config.backend is Backend.CUTEDSL)
        visitors = [c for c in made if c.backend is Backend.CUTLASS and c.operands.out_dtype is DType.BF16]
        # The widest and the narrowest: a visitor takes nvcc 26 CPU seconds (docs/notes/toolchain.md).
        yield from (visitors[0], visitors[-1])
    yield from _of_any_alignment(arch)
    yield from _one_of_each_other_kind()


def nvcc(arch: Arch) -> Iterator[KernelConfig]:
    """The kernels in place of `default` for users who lack the CuTe DSL: CUTLASS's and hand-written ones."""
    if arch is not Arch.SM90A:
        yield from default(arch)
        return
    for gemm in _gemms(OUT_DTYPES):
        frequent = sm90.FOR_AZP if gemm.epilogue.takes_azp else sm90.CORE
        yield from _kernels(gemm, frequent if gemm.operands.out_dtype is DType.BF16 else sm90.FEW)
    for dtype in PLAIN_DTYPES:
        yield from _kernels(_gemm(dtype, dtype), sm90.PLAIN if dtype is DType.BF16 else sm90.PLAIN_FEW)
    for layout, row, (raster, swizzle) in product(
        (ScaleLayout.MN_MAJOR, ScaleLayout.STRIDED), sm90.BLOCKWISE, sm90.RASTERS
    ):
        blocks = _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], layout)
        yield _config(blocks, row, launch=Launch(raster_order=raster, swizzle=swizzle))
    strided = _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], ScaleLayout.STRIDED)
    for config in _kernels(strided, sm90.GROUPS_OF_FEW_ROWS):
        yield replace(config, design=replace(config.design, main_loop=MainLoop.FEW_ROWS))
    for epilogue in (EpilogueKind.SCALED, EpilogueKind.SCALED_AZP):
        yield _config(_gemm(DType.S8, DType.BF16, epilogue), sm90.CORE.wide[1])
    for built_in in BUILT_IN.values():
        configs = with_epilogue(built_in.traced.text, built_in.operands, OUT_DTYPES, arch)
        yield from (config for config in configs if config.backend is Backend.CUTLASS)
    yield from _of_any_alignment(arch)
    yield from _other_kinds_of_cutlass()


def with_epilogue(text: str, operands: Sequence[DType], results: Sequence[DType], arch: Arch) -> Iterator[KernelConfig]:
    """The kernels of a user's epilogue, by the text of its steps.

    They are the DSL's, with the schedules of the standard epilogue for the same operands. For operands of 8 bits there
    are some by CUTLASS's visitors too. Those of e4m3 store codes, and are all that Blackwell has.
    """
    traced = of_text(text)
    for operand, result in product(operands, results):
        if arch is Arch.SM90A and result in RESULTS_OF[operand]:
            tables = {DType.E4M3: sm90_cutedsl.CORE, DType.S8: sm90_cutedsl.FEW}.get(operand, sm90_cutedsl.PLAIN)
            for config in _dsl_kernels(_gemm(operand, result), replace(tables, parallel=(), held=None)):
                yield with_own(config, traced)
        if operand.bits == 8 and result in OWN_RESULTS_OF[operand] and (operand.is_float or arch is Arch.SM90A):
            for config in _visitors(_gemm(operand, result), arch):
                yield with_own(config, traced)


def _visitors(gemm: Gemm, arch: Arch) -> Iterator[KernelConfig]:
    aligned: dict[str, Any] = {"alignment_d": TMA_BYTES * 8 // gemm.operands.out_dtype.bits}
    if arch is not Arch.SM90A:
        yield _config(gemm, ((128, 128, 128), (1, 1, 1), KernelSchedule.COOPERATIVE), arch, **aligned)
        return
    for row in sm90.VISITORS.wide:
        yield _config(gemm, row, **aligned)
    for row in sm90.VISITORS.narrow:
        yield _config(gemm, row, swap_ab=True, **aligned)


def _gemms_in_groups() -> Iterator[Gemm]:
    for out, operand, groups in product(OUT_DTYPES, (DType.E4M3, DType.S8), SCALE_GROUPS):
        yield _in_groups(operand, out, groups, ScaleLayout.STRIDED)


def _tables_in_groups(gemm: Gemm) -> sm90.Tables | None:
    """The schedules for a kind of groups; None for int8 in groups of 32, which no model has: the fallback serves it."""
    x = gemm.operands
    if x.group_size != FINE_BLOCKS.size:
        frequent = gemm == _in_groups(DType.E4M3, DType.BF16, SCALE_GROUPS[0], ScaleLayout.STRIDED)
        return sm90_cutedsl.GROUP_CORE if frequent else sm90_cutedsl.GROUP_FEW
    if not x.a_dtype.is_float:
        return None
    if x.b_scale is ScaleGranularity.GROUP:
        return sm90_cutedsl.GROUP_32_ROWS
    return sm90_cutedsl.GROUP_32 if x.out_dtype is DType.BF16 else sm90_cutedsl.GROUP_32_FEW


def _of_any_alignment(arch: Arch) -> Iterator[KernelConfig]:
    """The kernels for operands that no other takes."""
    for gemm in _gemms(OUT_DTYPES):
        yield _unaligned(gemm, arch)
    for dtype in PLAIN_DTYPES:
        yield _unaligned(_gemm(dtype, dtype), arch)
    for gemm in _gemms_in_groups():
        yield _unaligned(gemm, arch)


def _kernels(
    gemm: Gemm, tables: sm90.Tables, rasters: tuple[tuple[RasterOrder, int], ...] = sm90.RASTERS
) -> Iterator[KernelConfig]:
    for row, (raster, swizzle) in product(tables.wide, rasters):
        yield _config(gemm, row, launch=Launch(raster_order=raster, swizzle=swizzle))
    for row in tables.low:
        yield _config(gemm, row)
    for tile, schedule, stages in tables.shared:
        yield _config(gemm, (tile, (1, 1, 1), schedule), stages=stages)
    for row in tables.narrow:
        yield _config(gemm, row, swap_ab=True)
    for (tile, schedule, stages), splits in product(tables.split_k, sm90.SPLITS):
        yield _split_k(gemm, tile, schedule, stages, splits)
    for few_rows in tables.few_rows:
        yield _few_rows(gemm, *few_rows)
    for row, (raster, swizzle) in product(tables.wide_transposed, rasters):
        yield _config(gemm, row, swap_ab=True, launch=Launch(raster_order=raster, swizzle=swizzle))
    for row, splits in product(tables.parallel, sm90.PARALLEL_SPLITS):
        yield _config(gemm, row, tile_scheduler=TileScheduler.SPLIT_K_PARALLEL, launch=Launch(splits=splits))
    if tables.fours is not None:
        for config in _kernels(gemm, tables.fours, rasters):
            yield replace(config, design=replace(config.design, partial_sets=4))
    if tables.held is not None and gemm.operands.a_dtype.is_float:  # sums of integers have one order
        yield from _held_kernels(gemm, tables.held)


def _held_kernels(gemm: Gemm, tables: sm90.Tables) -> Iterator[KernelConfig]:
    rows = [(row, TileScheduler.RESTARTED) for row in tables.restarted]
    rows += [(row, TileScheduler.SPLIT_K_PARALLEL) for row in tables.parallel]
    for splits in sm90.HELD_SPLITS:
        divided = [
            _config(gemm, row, tile_scheduler=scheduler, launch=Launch(splits=splits)) for row, scheduler in rows
        ]
        divided += [_split_k(gemm, *row, splits) for row in tables.split_k]
        for config in divided:
            step = sm90.HELD_STEPS * config.design.tile_shape_mnk[2]
            yield replace(config, design=replace(config.design, slice_step=step))


def _dsl_kernels(gemm: Gemm, tables: sm90.Tables) -> Iterator[KernelConfig]:
    yield from map(with_dsl, _kernels(gemm, tables, sm90_cutedsl.RASTERS))


def _one_of_each_other_kind() -> Iterator[KernelConfig]:
    """Kernels of kinds that the full epilogues stand in for, and with promoted sums: to be compared and tested, seldom
    chosen."""
    fp8 = _gemm(DType.E4M3, DType.BF16)
    yield with_dsl(with_promotion(_config(fp8, ((128, 128, 128), (1, 1, 1), KernelSchedule.COOPERATIVE))))
    for epilogue in (EpilogueKind.SCALED, EpilogueKind.SCALED_AZP):
        yield with_dsl(_config(_gemm(DType.S8, DType.BF16, epilogue), sm90.CORE.wide[1]))
    yield from _other_kinds_of_cutlass()


def _other_kinds_of_cutlass() -> Iterator[KernelConfig]:
    fp8 = _gemm(DType.E4M3, DType.BF16)
    yield _config(_gemm(DType.E4M3, DType.BF16, EpilogueKind.SCALED), sm90.CORE.wide[0])
    yield _config(fp8, ((128, 256, 128), (2, 1, 1), KernelSchedule.COOPERATIVE), tile_scheduler=TileScheduler.STREAM_K)
    yield with_promotion(_split_k(fp8, (64, 16, 512), KernelSchedule.BASIC, 5, 2))


def with_promotion(config: KernelConfig) -> KernelConfig:
    """The same FP8 config with sums promoted to FP32 after every 128 along K."""
    return replace(config, design=replace(config.design, accumulation=Accumulation.PROMOTED))


def with_dsl(config: KernelConfig) -> KernelConfig:
    """The same config, its kernel made by the CuTe DSL."""
    return replace(config, backend=Backend.CUTEDSL)
