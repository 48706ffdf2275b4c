"""Calls of the op that decodes packed weights: of packed random ones, and of random bytes."""

import torch
from torch import Tensor

from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.formats.quantise import BlockScaled
from gemmill.numerics.call import EXACT, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, free_stride, matrix
from gemmill.numerics.memory import Slot
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.vocab import Format

_SIZES = ((1, 16), (64, 256), (133, 2048), (512, 7168), (3, 28672), (2, 76800), (0, 256), (8003, 2176))
SIZES_OF_WEIGHTS = (
    *({"rows": rows, "hidden": hidden} for rows, hidden in _SIZES),
    *({"rows": 130, "hidden": 784, "padding": padding} for padding in (1, 3, 8, 24)),
)
"""Sizes of calls; values lie apart in some."""


def packed_shape(format: Format, rows: int, hidden: int) -> tuple[int, int, int]:
    """Blocks along rows and columns of packed weights [rows, hidden], and the bytes of one."""
    block = format.code_bytes(SIDE * SIDE) + format.scale_count(SIDE * SIDE)
    return -(-rows // SIDE), -(-hidden // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE, block


def packed_weights(
    format: Format, rows: int, hidden: int, device: torch.device | str, random: torch.Generator | None
) -> Tensor:
    """Blocks of weights with codes and scales of every kind, numbers only; on the meta device, without `random`, no data."""
    if random is None:
        return torch.empty(packed_shape(format, rows, hidden), dtype=torch.uint8, device=device)
    codes = torch.empty((rows, format.code_bytes(hidden)), dtype=torch.uint8, device=device)
    scales = torch.empty((rows, format.scale_count(hidden)), dtype=torch.uint8, device=device)
    codes.random_(0, 256, generator=random)
    scales.random_(0, format.scale.last_code + 1, generator=random)
    weights = BlockScaled(format=format, codes=codes, scales=scales)
    return to_blocks(prepack(weights, for_op="fp4_weight_mm")).blocks


def drawn_weights(op: str, format: Format, draw: Draw, limits: Limits) -> LegalCall:
    """A random call. Random bytes take the place of packed weights: they are codes and scales."""
    most = limits.large if draw.chance(0.01) else limits.elements
    hidden = format.group * draw.size(max(1, min(32768, most) // format.group))
    rows = draw.size(max(1, min(8192, most // max(hidden, 1))))
    shape = packed_shape(format, rows, hidden)
    slots = {
        "out": matrix(draw, torch.bfloat16, rows, hidden, None, written=True, tidy=draw.chance(TIDY)),
        "blocks": Slot(
            dtype=torch.uint8,
            shape=shape,
            strides=(free_stride(draw, shape[0], shape[1] * shape[2]), free_stride(draw, shape[1], shape[2]), 1),
            rows=shape[0],
            columns=shape[1] * shape[2],
            row_stride=shape[1] * shape[2],
            column_stride=1,
            values=f"{format.name}_blocks",
            reference_shape=shape,
        ),
    }
    offsets = {name: draw.below(1 << 30) for name in slots}
    return LegalCall(op=op, slots=slots, plain={}, offsets=offsets, judged=EXACT)
