"""The order of packed weights that are gates and ups.

Where gates and ups have no scales of blocks, neighbouring rows are of both, so that one thread of a kernel has both. Each
32 packed rows are 16 results: eight gates, the eight ups of the same results, and that again. A thread of the tensor core
has two neighbouring rows (or columns) of each eight, 2q and 2q + 1. Of 16 results they are 4q to 4q + 3, which are
neighbours in a row of the result.

Where a block of `block` gates or ups shares a scale, packed rows are the first such gates, their ups, the next gates, and
so on: each block of rows has one scale, as a plain GEMM's weights have.
"""

import torch
from torch import Tensor

from gemmill.formats.layout import GATE_UP_ROWS

ORDERS = ("gate_up", "up_gate", "interleaved")
"""The orders of weights in checkpoints: all gates, then all ups; the other way round; or a gate, its up, the next
gate.
"""


def packed_rows(hidden: int, device: torch.device | None = None, block: int = 0) -> tuple[Tensor, Tensor]:
    """The packed row that is the gate of each of `hidden` results, and the one that is its up.

    `block`: gates, or ups, that share a scale; 0 where scales are not of blocks. `hidden` is a multiple of it.
    """
    result = torch.arange(hidden, device=device, dtype=torch.int64)
    if block:
        gate = result + result // block * block
        return gate, gate + block
    block, rest = result // 16, result % 16
    gate = GATE_UP_ROWS * block + rest % 4 // 2 * 16 + rest // 4 * 2 + rest % 2
    return gate, gate + 8


def given_rows(hidden: int, order: str, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """The rows of weights in one of ORDERS that hold the gates and the ups of `hidden` results. Raises ValueError for
    another order.
    """
    result = torch.arange(hidden, device=device, dtype=torch.int64)
    match order:
        case "gate_up":
            return result, result + hidden
        case "up_gate":
            return result + hidden, result
        case "interleaved":
            return 2 * result, 2 * result + 1
    raise ValueError(f"gates and ups in order {order!r}, expected one of {', '.join(ORDERS)}")


def pack_gate_up(given: Tensor, order: str, block: int = 0) -> Tensor:
    """Rows of gates and ups [2 hidden, ...] in our order, contiguous; `block` as in packed_rows. Raises ValueError for an order or
    a number of rows that there is not."""
    rows, step = given.shape[0], 2 * block or GATE_UP_ROWS
    if rows % step:
        raise ValueError(f"{rows} rows of gates and ups: they are packed in blocks of {step}")
    gate, up = packed_rows(rows // 2, given.device, block)
    from_gate, from_up = given_rows(rows // 2, order, given.device)
    source = torch.empty(rows, dtype=torch.long, device=given.device)
    source[gate], source[up] = from_gate, from_up
    return _rows_of(given, source)


def pack_blocks(given: Tensor, order: str) -> Tensor:
    """Scales of blocks of gates and ups [2 blocks, ...], in an order in which gates and ups do not share them, in ours. Raises
    ValueError for "interleaved" and for an odd number."""
    if order == "interleaved" or given.shape[0] % 2:
        raise ValueError(f"{given.shape[0]} scales of blocks in order {order!r}: each belongs to gates or to ups alone")
    gate, up = given.chunk(2) if order == "gate_up" else reversed(given.chunk(2))
    return torch.stack((gate, up), dim=1).flatten(0, 1)


def unpack_gate_up(packed: Tensor, block: int = 0) -> tuple[Tensor, Tensor]:
    """Gates and ups [hidden, ...] of packed rows [2 hidden, ...]; `block` as in packed_rows."""
    gate, up = packed_rows(packed.shape[0] // 2, packed.device, block)
    return _rows_of(packed, gate), _rows_of(packed, up)


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Rows by number, of any dtype: torch indexes bytes where it does not index codes."""
    if x.dtype.itemsize == 1:
        return x.view(torch.uint8)[rows].view(x.dtype)
    return x[rows]
