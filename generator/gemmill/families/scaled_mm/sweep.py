"""The measured calls of the GEMMs: bf16 results in all classes."""

import math
from enum import StrEnum

from gemmill.families.scaled_mm import NAME
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.classes import Need, class_code, classes_of, scales_code
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.family import Measured, ShapedCall, Sizes, Sweep
from gemmill.family.operand import TMA_BYTES
from gemmill.vocab import SCALE_GROUPS, DType, ScaleGranularity, ScaleGroups, TileScheduler


class MeasuredOp(StrEnum):
    """Measured classes of calls."""

    FP8 = "fp8"
    """e4m3 x e4m3, a scale for each row of A and each column of B"""
    INT8 = "int8"
    """s8 x s8, the same scales"""
    INT8_AZP = "int8_azp"
    """s8 x s8 with a zero point for each row of A"""
    FP8_GROUPS = "fp8_groups"
    """e4m3 x e4m3 with scales of 1 x 128 of A, M-major and padded to 16 bytes, and of 128 x 128 of B"""
    FP8_GROUPS_32 = "fp8_groups_32"
    """the same with scales of 1 x 32 and 32 x 32"""
    BF16 = "bf16"
    """bf16 x bf16, both scales 1: the plain product, to compare with"""

    @property
    def operand(self) -> DType:
        """Dtype of A and B."""
        return _OPERANDS[self]

    @property
    def groups(self) -> ScaleGroups | None:
        """The groups that scales come in; None where they are for rows and columns."""
        size = _GROUP_SIZES.get(self)
        return next((g for g in SCALE_GROUPS if (g.size, g.b_scale) == (size, ScaleGranularity.BLOCK)), None)


_OPERANDS = {
    MeasuredOp.FP8: DType.E4M3,
    MeasuredOp.INT8: DType.S8,
    MeasuredOp.INT8_AZP: DType.S8,
    MeasuredOp.FP8_GROUPS: DType.E4M3,
    MeasuredOp.FP8_GROUPS_32: DType.E4M3,
    MeasuredOp.BF16: DType.BF16,
}
_GROUP_SIZES = {MeasuredOp.FP8_GROUPS: 128, MeasuredOp.FP8_GROUPS_32: 32}


def _measured(op: MeasuredOp) -> Measured:
    element_bytes = op.operand.bits // 8
    need = Need.AZP_TOKEN if op is MeasuredOp.INT8_AZP else Need.SCALE
    code = class_code(need, op.operand.torch_name, DType.BF16.torch_name, scales_code(op.groups, mn_major=True))

    def call(sizes: Sizes) -> ShapedCall:
        m, n, k = (sizes[name] for name in "mnk")
        align_k, align_d = math.gcd(element_bytes * k, TMA_BYTES), math.gcd(2 * n, TMA_BYTES)
        align_a, align_b = (TMA_BYTES if rows == 1 else align_k for rows in (m, n))
        return ShapedCall(family=NAME, call_class=code, sizes=(m, n, k), alignments=(align_a, align_b, align_d))

    return Measured(
        name=op.value,
        call=call,
        flops=lambda sizes: 2.0 * sizes["m"] * sizes["n"] * sizes["k"],
        operand_bits=op.operand.bits,
        # Scales are left out.
        bytes=lambda s: (s["m"] + s["n"]) * s["k"] * element_bytes + 2 * s["m"] * s["n"],
        serves=lambda config: code in classes_of(accepted(config)),
        # One group alone is a scale for each row.
        least={} if op.groups is None else {"k": 2 * op.groups.size},
    )


def _shown(config: KernelConfig) -> tuple[str, str]:
    schedule = config.design
    tile_m, tile_n, _ = schedule.tile_shape_mnk
    if not schedule.kernel_schedule.uses_tma:
        kind = "unaligned"
    elif schedule.tile_scheduler is TileScheduler.STREAM_K:
        kind = "streamk"
    elif schedule.tile_scheduler is TileScheduler.SPLIT_K:
        kind = "splitk"
    else:
        kind = "swapab" if schedule.swap_ab else "persistent"
    return kind, f"{tile_m}x{tile_n}"


SWEEP = Sweep(
    measured=tuple(_measured(op) for op in MeasuredOp),
    steps=(1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    example={"m": [1, 16, 64], "n": 4096, "k": 4096},
    tiny={"m": 32, "n": 48, "k": 64},
    is_last_resort=lambda config: not config.design.kernel_schedule.uses_tma,
    kin=lambda config: (config.operands.a_dtype, config.operands.group_size, config.design, config.launch),
    kinds={
        "splitk": "split-K",
        "streamk": "stream-K",
        "swapab": "swap-AB, persistent",
        "persistent": "persistent",
        "unaligned": "any alignment",
    },
    shown=_shown,
    losses={"nearest": 0.028, "model": 0.031},  # H200, 2026-11-20 and 21; docs/notes/tables.md
    tile=lambda facts: (facts.tile_m, facts.tile_n, facts.sharers_b, facts.sharers_a),
)
