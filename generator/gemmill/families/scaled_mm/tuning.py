"""The choice among the GEMMs that take a call."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.classes import (
    Need,
    class_of,
    classes_of,
    describe_class,
    scales_codes_of,
)
from gemmill.families.scaled_mm.config import RESULTS_OF, KernelConfig
from gemmill.families.scaled_mm.model import (
    IN_CLUSTER,
    IN_MEMORY,
    IN_REGISTERS,
    RowFacts,
    ctas_of,
    least_ns,
    model_ns,
    pads_more,
)
from gemmill.families.scaled_mm.own import operands_of, with_own
from gemmill.families.scaled_mm.rules.memory import few_rows_bytes
from gemmill.families.scaled_mm.sweep import SWEEP, MeasuredOp
from gemmill.family import Reach, Row, ShapedCall, Tuning
from gemmill.gemm.facts import Facts as KernelFacts
from gemmill.gemm.limits import PROMOTION
from gemmill.gemm.order import order_of
from gemmill.gemm.traced import all_known
from gemmill.vocab import (
    Accumulation,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    RasterOrder,
    ScaleLayout,
    TileScheduler,
)

_RASTER_CODES = {RasterOrder.HEURISTIC: 0, RasterOrder.ALONG_M: 1, RasterOrder.ALONG_N: 2}
_WITHOUT_TMA_PERMILLE = 12_000
"""The cost of kernels without TMA and WGMMA, in thousandths of the model's time, which knows nothing of either.

It is an assumption, large enough that the fallback is chosen only where nothing else fits.
"""
_CUTLASS_PERMILLE = 1_053
"""The cost of CUTLASS's kernels, in thousandths of the model's time, compared with the CuTe DSL's of the same tile:
fitted with the model.
"""

_MEETS = {TileScheduler.SPLIT_K: IN_CLUSTER, TileScheduler.RESTARTED: IN_REGISTERS}

_MOST_CTAS, _MOST_STAGES = 4, 16
_SHARED_BYTES = 227 * 1024

MOST_CTAS = 2**30
"""The most CTAs of a call: kernels count them in 32 bits, some past the last."""


def _rows(config: KernelConfig, kernel: int) -> Iterator[Row]:
    accepts, facts = accepted(config), _facts(config)
    for number in classes_of(accepts):
        yield Row(
            kernel=kernel,
            call_class=number,
            most=accepts.max_mnk,
            alignments=(
                accepts.alignment_a * accepts.a_dtype.bits // 8,
                accepts.alignment_b * accepts.a_dtype.bits // 8,
                accepts.alignment_d * accepts.out_dtype.bits // 8,
            ),
            least=(0, 0, accepts.min_k),
            facts=facts,
            held_only=_is_held_only(config),
        )


def _is_held_only(config: KernelConfig) -> bool:
    """Whether a variant is there for its order: others with its tile are as fast.

    With scales in groups no other variant has 128 x 64, or slices of 64 x 64 and 128 x 128. Of these the free choice has those with
    three slices, whose times the model knows to 2 to 13 %; of more slices it expects too little.
    """
    design = config.design
    is_split_k = design.tile_scheduler is TileScheduler.SPLIT_K
    if (
        config.operands.group_size
        and config.launch.splits == 3
        and (is_split_k or design.tile_shape_mnk[:2] == (128, 64))
    ):
        return False
    return design.tile_scheduler is TileScheduler.RESTARTED or design.slice_step is not None


def _facts(config: KernelConfig) -> RowFacts:
    s, launch, element_bits = config.design, config.launch, config.operands.a_dtype.bits
    tile_m, tile_n, tile_k = s.tile_shape_mnk
    cluster_m, cluster_n, _ = s.cluster_shape_mnk
    stage = (tile_m + tile_n) * tile_k * element_bits // 8
    columns = tile_n
    if s.swap_ab:
        tile_m, tile_n = tile_n, tile_m
        cluster_m, cluster_n = cluster_n, cluster_m
    of_cutlass = config.backend is Backend.CUTLASS and s.kernel_schedule.uses_tma
    few_rows = s.main_loop is MainLoop.FEW_ROWS
    meets = _MEETS.get(s.tile_scheduler, IN_MEMORY)
    return RowFacts(
        raster_order=_RASTER_CODES[launch.raster_order],
        swizzle=launch.swizzle,
        splits=launch.splits,
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k * element_bits // 8,
        columns=columns,
        sharers_a=cluster_n,
        sharers_b=cluster_m,
        pads=int(of_cutlass and meets != IN_CLUSTER and not few_rows),
        ctas_of_sm=_ctas_of_sm(config, stage),
        overlaps=int(s.kernel_schedule is KernelSchedule.PINGPONG),
        promotes=_promotions(config),
        meets=meets,
        box_rows=KernelFacts(config).box_rows if config.backend is Backend.CUTEDSL else 0,
        # By default as many as shared memory has room for.
        stages=s.stages or max(2, min(_MOST_STAGES, _SHARED_BYTES // stage)),
        partials=max(KernelFacts(config).partials, 1) if config.backend is Backend.CUTEDSL else 1,
        by_turns=int(config.backend is Backend.CUTEDSL and KernelFacts(config).alternates),
        cost_permille=_CUTLASS_PERMILLE
        if of_cutlass and not few_rows
        else 1000
        if s.kernel_schedule.uses_tma
        else _WITHOUT_TMA_PERMILLE,
    )


def _promotions(config: KernelConfig) -> int:
    """How often a kernel promotes sums in 128 bytes along K."""
    if group := config.operands.group_size:
        return max(1, PROMOTION // group)
    return int(config.design.accumulation is Accumulation.PROMOTED)


def _ctas_of_sm(config: KernelConfig, stage: int) -> int:
    """How many CTAs shared memory leaves room for, as far as the model cares.

    The DSL's kernels fill it with their stages unless their config has a number of them.
    """
    s, is_cutlass = config.design, config.backend is Backend.CUTLASS
    is_basic = s.kernel_schedule is KernelSchedule.BASIC
    if not s.kernel_schedule.uses_tma:
        return 1
    if s.main_loop is MainLoop.FEW_ROWS:
        return max(1, min(_MOST_CTAS, (_SHARED_BYTES + 1024) // (few_rows_bytes(config) + 1024)))
    if s.stages is not None and (is_cutlass or is_basic):
        return max(1, min(_MOST_CTAS, _SHARED_BYTES // (stage * s.stages + 4096)))
    if is_basic and is_cutlass:
        return max(1, min(_MOST_CTAS, _SHARED_BYTES // (stage * 3 + 8192)))
    return 1


def _refuses(row: Row, call: ShapedCall) -> str | None:
    m, n, _ = call.sizes
    if (ctas := ctas_of(row.facts, m, n)) > MOST_CTAS:
        return f"it would take {ctas} CTAs for M, N = {m}, {n}, and counts up to {MOST_CTAS}"
    return None


def _offers(config: KernelConfig) -> dict[int, tuple[KernelConfig, ...]]:
    """The measured configs for each class of calls.

    Those measured for one output dtype and epilogue serve the sibling classes of the same operands too, with users'
    epilogues, and those of bf16 operands serve f16. The main loop, which decides, is the same.
    """
    measured, epilogue = config.operands, config.epilogue
    # A variant that reads scales in one layout alone is not found among the rows of the other.
    layout = ScaleLayout.STRIDED if measured.scale_groups else ScaleLayout.VECTOR
    offered: dict[int, tuple[KernelConfig, ...]] = {}
    for out, kind in product((DType.BF16, DType.F16), EpilogueKind):
        if kind.takes_azp is epilogue.takes_azp:
            operand = measured.a_dtype if out in RESULTS_OF[measured.a_dtype] else out
            operands = replace(measured, a_dtype=operand, b_dtype=operand, out_dtype=out)
            sibling = replace(config, operands=operands, epilogue=kind)
            for code in classes_of(accepted(replace(sibling, operands=replace(operands, scale_layout=layout)))):
                offered[code] = (*offered.get(code, ()), sibling)
    if epilogue is EpilogueKind.SCALED_BIAS and not measured.group_size and config.backend is Backend.CUTEDSL:
        for traced in all_known():
            own = with_own(config, traced)
            if measured.a_dtype in operands_of(traced):
                offered |= dict.fromkeys(classes_of(accepted(own)), (own,))
    return offered


def _measured_as(call: ShapedCall) -> str | None:
    """The measured class of a call: fp8, int8, int8_azp, fp8_groups, fp8_groups_32 or bf16 (f16 too); None for a call
    of no such class."""
    told = class_of(call.call_class)
    if told.own:
        return None
    if told.scales:
        if told.operand is not DType.E4M3:
            return None
        codes = {op: scales_codes_of(op.groups, ScaleLayout.STRIDED) for op in MeasuredOp if op.groups}
        return next((op.value for op, of_op in codes.items() if told.scales in of_op), None)
    if told.need in (Need.AZP_ROW, Need.AZP_TOKEN):
        return "int8_azp"
    return {DType.E4M3: "fp8", DType.S8: "int8"}.get(told.operand, "bf16")


TUNING = Tuning(
    sizes=("m", "n", "k"),
    result=("m", "n"),
    aligned=("a", "b", "out"),
    near=("n", "k"),
    bucketed="m",
    reach=Reach(few=16, many=512, endless=4096, ratio=2, distance=0.1, margin=1.02, abroad=256),
    rows=_rows,
    order=lambda config: order_of(config.operands, config.design, config.launch.splits),
    summed="k",
    one_slice=1.0,
    describe=describe_class,
    differs=lambda has, needs: f"it computes {describe_class(has)}, the call needs {describe_class(needs)}",
    refuses=_refuses,
    model_ns=model_ns,
    least_ns=least_ns,
    usual=lambda number: {"m": (1, 8192, 1), "n": (512, 40960, 128), "k": (512, 40960, 128)},
    wastes=pads_more,
    offers=_offers,
    measured_as=_measured_as,
    sweep=SWEEP,
)
