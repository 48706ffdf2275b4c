"""The order of packed weights that are gates and ups: neighbouring rows of both, so that one thread of a kernel has
both.

Each 32 packed rows are 16 results: eight gates, the eight ups of the same results, and that again. A thread of the
tensor core has two neighbouring rows (or columns) of each eight, 2q and 2q + 1. Of 16 results they are 4q to 4q + 3,
which are neighbours in a row of the result.
"""

import torch
from torch import Tensor

from gemmill.formats.layout import GATE_UP_BLOCK, GATE_UP_ROWS

ORDERS = ("gate_up", "up_gate", "interleaved")
"""The orders of weights in checkpoints: all gates, then all ups; the other way round; or a gate, its up, the next
gate.
"""


def packed_rows(hidden: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """The packed row that is the gate of each of `hidden` results, and the one that is its up."""
    result = torch.arange(hidden, device=device, dtype=torch.int64)
    block, rest = result // 16, result % 16
    gate = GATE_UP_ROWS * block + rest % 4 // 2 * 16 + rest // 4 * 2 + rest % 2
    return gate, gate + 8


def packed_blocks(rows: int, device: torch.device | None = None, block: int = GATE_UP_BLOCK) -> Tensor:
    """The number of the scale of blocks that each of `rows` packed rows has.

    The first `block` gates have the first, their ups the second, the next ones the third.
    """
    row = torch.arange(rows, device=device, dtype=torch.int64)
    return row // (2 * block) * 2 + row % 16 // 8


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


def pack_gate_up(given: Tensor, order: str) -> Tensor:
    """Rows of gates and ups [2 hidden, ...] in our order, contiguous. Raises ValueError for an order or a number of rows that there
    is not."""
    rows = given.shape[0]
    if rows % GATE_UP_ROWS:
        raise ValueError(f"{rows} rows of gates and ups: they are packed in blocks of {GATE_UP_ROWS}")
    gate, up = packed_rows(rows // 2, given.device)
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


def unpack_gate_up(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Gates and ups [hidden, ...] of packed rows [2 hidden, ...]."""
    gate, up = packed_rows(packed.shape[0] // 2, packed.device)
    return _rows_of(packed, gate), _rows_of(packed, up)


def _rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Rows by number, of any dtype: torch indexes bytes where it does not index codes."""
    if x.dtype.itemsize == 1:
        return x.view(torch.uint8)[rows].view(x.dtype)
    return x[rows]
