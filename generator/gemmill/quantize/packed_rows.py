"""The layout of weights that lie in rows with their scales (`gemmill.formats.packed_rows`). No blocks hold them.

They are weights of fp4_weight_mm.
"""

from torch import Tensor

from gemmill.formats.packed_rows import joined
from gemmill.quantize.prepack import Prepacked


def to_rows(weights: Prepacked) -> tuple[Tensor, Tensor]:
    """The rows uint8 [N, bytes of a row] and bases f32 [N] that fp4_weight_mm takes, of weights [N, K] that `prepack`
    made for it.

    They are for f16 activations, and those of mxfp6 and mxfp8 for bf16 too. Raises ValueError for weights of another
    op.
    """
    if weights.op != "fp4_weight_mm":
        raise ValueError(f"packed rows are for fp4_weight_mm, got weights packed for {weights.op}")
    return joined(weights.weights), weights.base
