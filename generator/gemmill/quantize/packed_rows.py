"""Weights put into rows with their scales (`gemmill.formats.packed_rows`): those of fp4_weight_mm that no blocks hold."""

from torch import Tensor

from gemmill.formats.packed_rows import joined
from gemmill.quantize.prepack import Prepacked


def to_rows(weights: Prepacked) -> tuple[Tensor, Tensor]:
    """Weights [N, K] that `prepack` made for fp4_weight_mm, as the op takes them: uint8 [N, bytes of a row], and the bases, f32 [N].

    They are for f16 activations, and those of mxfp6 and mxfp8 for bf16 too. Raises ValueError for weights of another op.
    """
    if weights.op != "fp4_weight_mm":
        raise ValueError(f"packed rows are for fp4_weight_mm, got weights packed for {weights.op}")
    return joined(weights.weights), weights.base
