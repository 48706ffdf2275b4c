"""The spelling of a config in CUTLASS 3.x C++: a template, and the values of its holes."""

from typing import Any

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.family import Spelled
from gemmill.vocab import (
    Accumulation,
    Arch,
    DType,
    KernelSchedule,
    MainLoop,
    ScaleGranularity,
    ScaleLayout,
    TileScheduler,
)

_MAINLOOP_SM90 = {
    KernelSchedule.COOPERATIVE: "KernelTmaWarpSpecializedCooperative",
    KernelSchedule.PINGPONG: "KernelTmaWarpSpecializedPingpong",
    KernelSchedule.BASIC: "KernelTmaWarpSpecialized",
}
_EPILOGUE_SM90 = {
    KernelSchedule.COOPERATIVE: "TmaWarpSpecializedCooperative",
    KernelSchedule.PINGPONG: "TmaWarpSpecialized",
    KernelSchedule.BASIC: "TmaWarpSpecialized",
}
_SCHEDULER = {
    TileScheduler.PERSISTENT: "cutlass::gemm::PersistentScheduler",
    TileScheduler.STREAM_K: "gemmill::StreamKScheduler",
}


def spell(config: KernelConfig) -> Spelled:
    """The template of a config's kind of kernel, and the values of its holes."""
    return Spelled(template=_template(config), values=_values(config))


def _template(config: KernelConfig) -> str:
    if config.design.main_loop is MainLoop.FEW_ROWS:
        return "scaled_mm/cutlass/few_rows_mm.cu.jinja"
    group = "group_" if config.operands.scale_groups else ""
    if not config.design.kernel_schedule.uses_tma:
        return f"scaled_mm/cutlass/{group}unaligned_mm.cu.jinja"
    if config.design.tile_scheduler is TileScheduler.SPLIT_K:
        return "scaled_mm/cutlass/split_k_mm.cu.jinja"
    return "scaled_mm/cutlass/blockwise_mm.cu.jinja" if group else "scaled_mm/cutlass/scaled_mm.cu.jinja"


def _values(config: KernelConfig) -> dict[str, Any]:
    x, s = config.operands, config.design
    values: dict[str, Any] = {
        "a_type": x.a_dtype.cutlass_type,
        "b_type": x.b_dtype.cutlass_type,
        "accumulator_type": x.accumulator_dtype.cutlass_type,
        "d_type": x.out_dtype.cutlass_type,
        "epilogue_kind": config.epilogue.value,
        "arguments_struct": "gemmill_scaled_mm_args",
        "tile_shape_mnk": s.tile_shape_mnk,
    }
    if x.scale_groups is not None:
        values |= {
            "group_size": x.group_size,
            "b_in_blocks": _bool(x.b_scale is ScaleGranularity.BLOCK),
            "takes_bias": _bool(config.epilogue.takes_bias),
            "strided": x.scale_layout is ScaleLayout.STRIDED,
        }
    if not s.kernel_schedule.uses_tma:
        return values
    if s.main_loop is MainLoop.FEW_ROWS:
        return values | {"stages": s.stages, "grouped": _bool(x.group_size > 0)}
    if s.tile_scheduler is TileScheduler.SPLIT_K:
        return values | {"stages": s.stages, "promoted": s.accumulation is Accumulation.PROMOTED}
    # The kernel as compiled: with swap_ab, its A is the op's B.
    a_type, b_type = (x.b_dtype, x.a_dtype) if s.swap_ab else (x.a_dtype, x.b_dtype)
    mainloop, epilogue, scheduler = _schedules(config)
    return values | {
        "a_type": a_type.cutlass_type,
        "b_type": b_type.cutlass_type,
        "arch_tag": config.arch.cutlass_tag,
        "cluster_shape_mnk": s.cluster_shape_mnk,
        "swap_ab": s.swap_ab,
        "alignment_a": s.alignment_b if s.swap_ab else s.alignment_a,
        "alignment_b": s.alignment_a if s.swap_ab else s.alignment_b,
        "alignment_d": s.alignment_d,
        "mainloop_schedule": f"cutlass::gemm::{mainloop}",
        "epilogue_schedule": f"cutlass::epilogue::{epilogue}",
        "scheduler_tag": scheduler,
        "scheduler_partial": f"scaled_mm/cutlass/_{s.tile_scheduler}.jinja",
        "stage_count": _stage_count(s.stages),
        "takes_workspace": s.tile_scheduler is TileScheduler.STREAM_K,
    }


def _schedules(config: KernelConfig) -> tuple[str, str, str]:
    """The schedules of main loop and epilogue, and the scheduler's tag."""
    schedule = config.design.kernel_schedule
    if config.arch is not Arch.SM90A:
        return "collective::KernelScheduleAuto", "collective::EpilogueScheduleAuto", "void"
    fast = config.design.accumulation is Accumulation.FAST and config.operands.a_dtype is DType.E4M3
    sums = "FP8Blockwise" if config.operands.scale_groups else "FP8FastAccum" if fast else ""
    tag = "void" if schedule is KernelSchedule.BASIC else _SCHEDULER[config.design.tile_scheduler]
    return _MAINLOOP_SM90[schedule] + sums, _EPILOGUE_SM90[schedule], tag


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _stage_count(stages: int | None) -> str:
    if stages is None:
        return (
            "cutlass::gemm::collective::StageCountAutoCarveout<"
            "static_cast<int>(sizeof(typename CollectiveEpilogue::SharedStorage))>"
        )
    return f"cutlass::gemm::collective::StageCount<{stages}>"
