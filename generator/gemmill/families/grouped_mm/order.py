"""The order of K of grouped kernels."""

from gemmill.families.grouped_mm.config import AnyConfig, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.family import EXACT, Order
from gemmill.gemm.order import order_of_loop
from gemmill.vocab import DType


def order_of(config: AnyConfig) -> Order | None:
    """The order of a variant: which expert a row belongs to, and how many rows it has, decides its tile and not its sum."""
    match config:
        case GroupedConfig():
            return order_of_loop(config.operands.dtype, config.design, group_size=config.group_size)
        case UnalignedGroupedConfig():
            if config.operands.dtype is DType.S8:
                return EXACT
            return Order(instruction="mma.sync", accumulator=DType.F32, promoted_k=config.group_size)
        case PackedGroupedConfig(by_warps=by_warps):
            return Order(
                instruction="mma.sync" if by_warps else "wgmma",
                accumulator=DType.F32,
                promoted_k=config.block_columns if config.dtype is DType.E4M3 else 0,
                loop=f"four quarters of {config.stage_columns} columns" if by_warps else "",
            )
