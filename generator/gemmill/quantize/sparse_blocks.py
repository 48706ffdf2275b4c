"""2:4 sparse nvfp4 weights put into the order in which Hopper's kernels read them (`gemmill.formats.sparse_blocks`)."""

import torch
from torch import Tensor

from gemmill.formats.codes import unpack
from gemmill.formats.fp4_blocks import SCALE_BYTES, table_of
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.formats.sparse_blocks import (
    LEAST_PLACES,
    SparseFp4Blocks,
    in_kept_words,
    in_place_bytes,
    in_scale_bytes,
)
from gemmill.formats.sparse_fp4 import SparseFp4
from gemmill.formats.two_to_four import GROUP, KEPT


def to_sparse_blocks(weights: SparseFp4, expert: int, rows: Tensor | None = None) -> SparseFp4Blocks:
    """The blocks of one expert's weights, and their bases. It does not change its input.

    rows: int64, the source row of each packed row; in order by default.
    """
    _, n, k = weights.shape
    order = torch.arange(n, device=weights.codes.device, dtype=torch.int64) if rows is None else rows
    codes, scales = unpack(weights.codes[expert][order], 4), weights.scales[expert][order]
    places = weights.places(expert)[order]
    of_group = KEPT * weights.group // GROUP
    codes = codes.masked_fill((scales == 0).repeat_interleave(of_group, dim=1), 0)
    nibbles = (places[..., 0] | places[..., 1] << 2).to(torch.uint8)
    tiles, columns = -(-n // SIDE), -(-k // STAGE_COLUMNS) * STAGE_COLUMNS
    table = table_of(dict(enumerate(SCALE_BYTES)), codes.device)
    parts = (
        in_kept_words(_padded(codes, tiles * SIDE, columns // 2)),
        in_place_bytes(_padded(nibbles, tiles * SIDE, columns // GROUP, LEAST_PLACES)),
        in_scale_bytes(_padded(table[scales.long()], tiles * SIDE, columns // weights.group), weights.group),
    )
    base = weights.weight_scale_2[expert].repeat_interleave(n // weights.parts)[order]
    return SparseFp4Blocks(n=n, k=k, group=weights.group, blocks=torch.cat(parts, dim=2), base=base)


def _padded(rows: Tensor, count: int, columns: int, value: int = 0) -> Tensor:
    """Rows with values below and to the right."""
    return torch.nn.functional.pad(rows, (0, columns - rows.shape[1], 0, count - rows.shape[0]), value=value)
