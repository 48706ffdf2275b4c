"""The spelling of a sparse GEMM's config in CUTLASS 3.x C++."""

from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.family import Spelled
from gemmill.vocab import Accumulation, DType, KernelSchedule, TileScheduler

_MAINLOOP = {
    KernelSchedule.COOPERATIVE: "KernelTmaWarpSpecializedCooperative",
    KernelSchedule.PINGPONG: "KernelTmaWarpSpecializedPingpong",
    KernelSchedule.BASIC: "KernelTmaWarpSpecialized",
}
_EPILOGUE = {
    KernelSchedule.COOPERATIVE: "TmaWarpSpecializedCooperative",
    KernelSchedule.PINGPONG: "TmaWarpSpecialized",
    KernelSchedule.BASIC: "TmaWarpSpecialized",
}
_SCHEDULER = {
    TileScheduler.PERSISTENT: "cutlass::gemm::PersistentScheduler",
    TileScheduler.STREAM_K: "gemmill::StreamKScheduler",
}


def spell(config: SparseConfig) -> Spelled:
    """The template, and the values of its holes."""
    c = config
    fast = c.design.accumulation is Accumulation.FAST and c.operand_dtype is DType.E4M3
    is_persistent = c.design.kernel_schedule is not KernelSchedule.BASIC
    holes = {
        "element_type": c.operand_dtype.cutlass_type,
        "accumulator_type": c.accumulator_dtype.cutlass_type,
        "d_type": c.out_dtype.cutlass_type,
        "epilogue_kind": c.epilogue.value,
        "arguments_struct": "gemmill_sparse_mm_args",
        "arch_tag": c.arch.cutlass_tag,
        "tile_shape_mnk": c.design.tile_shape_mnk,
        "cluster_shape_mnk": c.design.cluster_shape_mnk,
        "alignment": 128 // c.operand_dtype.bits,
        "alignment_d": 128 // c.out_dtype.bits,
        "mainloop_schedule": f"cutlass::gemm::{_MAINLOOP[c.design.kernel_schedule]}{'FP8FastAccum' if fast else ''}",
        "epilogue_schedule": f"cutlass::epilogue::{_EPILOGUE[c.design.kernel_schedule]}",
        "scheduler_tag": _SCHEDULER[c.design.tile_scheduler] if is_persistent else "void",
        "is_persistent": is_persistent,
        "takes_workspace": c.design.tile_scheduler is TileScheduler.STREAM_K,
        "stage_count": _stage_count(c.design.stages),
    }
    return Spelled(template="sparse_mm/sparse_mm.cu.jinja", values=holes)


def _stage_count(stages: int | None) -> str:
    if stages is None:
        return "StageCountAutoCarveout<static_cast<int>(sizeof(typename CollectiveEpilogue::SharedStorage))>"
    return f"StageCount<{stages}>"
