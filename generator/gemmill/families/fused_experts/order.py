"""The order of K of fused experts. A row's sums are those of its token and an expert: other rows decide its tile.

Each variant sums a token's experts in the order of topk, and makes codes of a row from that row alone. Variants of one
class differ in the instruction, in the division of K, and in the type of the parts that a token's experts leave.
"""

from gemmill.families.fused_experts.config import AnyConfig, ExpertsConfig, PackedExpertsConfig
from gemmill.family import Order
from gemmill.vocab import DType

_PARTS = "experts added as {}"


def order_of(config: AnyConfig) -> Order | None:
    """The order of a variant; None where the number of tokens, or of an expert's rows, decides it."""
    return _of_packed(config) if isinstance(config, PackedExpertsConfig) else _of_plain(config)


def _of_plain(config: ExpertsConfig) -> Order | None:
    if config.apart or config.streamed:
        # Under the contract each product is made in the order that grouped GEMMs hold for it. Where scales come in groups they have one,
        # which streamed kernels keep: tests/families/fused_experts/gpu/test_one_order.py compares them.
        return _order("grouped GEMMs", config.group_size, _PARTS.format(config.out_dtype))
    return None  # warps divide K into slices by the number of tokens, and of multiprocessors


def _of_packed(config: PackedExpertsConfig) -> Order | None:
    if not config.is_coded:
        # Tiles multiply up to 16 rows of an expert by `mma.sync`, and more by `wgmma`, along all of K. On Hopper both give the same bits:
        # tests/families/fused_experts/gpu/test_one_order.py compares them.
        return _order("mma.sync", 0, "a warp along all of K")
    return _order("wgmma", 0, _PARTS.format(config.out_dtype))


def _order(instruction: str, promoted_k: int, loop: str) -> Order:
    return Order(instruction=instruction, accumulator=DType.F32, promoted_k=promoted_k, loop=loop)
