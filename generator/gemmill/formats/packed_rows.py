"""Block-scaled weights in rows with their scales. A row has its codes as in a checkpoint, its scales, and zeros to a
multiple of 16 bytes. A kernel that widens weights on their way into shared memory reads them so."""

from torch import Tensor

from gemmill.formats.layout import ROW_BYTES
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import Format


def joined(weights: BlockScaled) -> Tensor:
    """The codes and scales as uint8 [N, bytes of a row]."""
    (n, codes), scales = weights.codes.shape, weights.scales.shape[1]
    rows = weights.codes.new_zeros(n, -(-(codes + scales) // ROW_BYTES) * ROW_BYTES)
    rows[:, :codes], rows[:, codes : codes + scales] = weights.codes, weights.scales
    return rows


def parted(rows: Tensor, format: Format, k: int) -> BlockScaled:
    """The inverse."""
    codes = format.code_bytes(k)
    return BlockScaled(format=format, codes=rows[:, :codes], scales=rows[:, codes : codes + format.scale_count(k)])
