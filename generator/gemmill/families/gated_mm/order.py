"""The order of K of gated kernels."""

from gemmill.families.gated_mm.config import AnyConfig, GatedPartsConfig, UnalignedGatedConfig
from gemmill.family import EXACT, Order
from gemmill.gemm.order import order_of_loop
from gemmill.vocab import DType


def order_of(config: AnyConfig) -> Order | None:
    """The order of a variant. Gate and up of a result have separate sums, in the same order; codes of a group have the
    scale of that row's group. Parts have the order that plain GEMMs of these operands, N and K hold, slices of K included.
    """
    x = config.operands
    if isinstance(config, GatedPartsConfig):
        return EXACT if x.dtype is DType.S8 else _order("grouped GEMMs" if x.by_expert else "plain GEMMs", x.group_size)
    if not isinstance(config, UnalignedGatedConfig):
        return order_of_loop(x.dtype, config.design, group_size=x.group_size)
    if x.dtype is DType.S8:
        return EXACT
    return _order("mma.sync", x.group_size)


def _order(instruction: str, promoted_k: int) -> Order:
    return Order(instruction=instruction, accumulator=DType.F32, promoted_k=promoted_k)
