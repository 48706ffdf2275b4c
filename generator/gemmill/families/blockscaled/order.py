"""The order of K of block-scaled kernels."""

from gemmill.families.blockscaled.config import AnyConfig, FewConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import Group
from gemmill.family import Order
from gemmill.formats.layout import SIDE
from gemmill.vocab import DType

_CLUSTER = "the shared memory of a cluster"


def order_of(config: AnyConfig) -> Order:
    """The order of a variant. Main loops of Hopper's kernels are kept apart, and designs of Blackwell's, which nobody has
    probed there, are each an order of their own."""
    match config:
        case FewConfig(design=d):
            return _in_slices("mma.sync", config.splits, config.stage_columns, f"{d.main_loop} by {d.warps} warps")
        case ManyConfig(design=d):
            return _in_slices("wgmma", config.splits, SIDE, f"{d.main_loop}")
        case PackedConfig(design=d):
            instruction = "mma.sync" if d.group is Group.WARP else "wgmma"
            loop = f"{d.main_loop} by {d.k_groups} groups of {d.blocks} x {config.part_columns} in {config.turns} turns"
            promoted = config.block_columns if config.is_folded else 0
            return _in_slices(instruction, config.splits, config.stage_columns, loop, promoted)
        case PairConfig(design=d):
            tile, cluster = ("x".join(map(str, shape)) for shape in (d.tile_shape_mnk, d.cluster_shape_mnk))
            return Order(
                instruction="mma", accumulator=DType.F32, loop=f"{d.sharing} of {tile} in clusters of {cluster}"
            )


def _in_slices(instruction: str, splits: int, step: int, loop: str, promoted: int = 0) -> Order:
    return Order(
        instruction=instruction,
        accumulator=DType.F32,
        promoted_k=promoted,
        slices=splits,
        slice_step=step if splits > 1 else 0,
        joined=_CLUSTER if splits > 1 else "",
        loop=loop,
    )
