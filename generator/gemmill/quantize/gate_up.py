"""Weights of gates and ups, packed once for the kernels that end with their activation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.gate_up import ORDERS, pack_blocks, pack_gate_up
from gemmill.formats.layout import FINE_GATE_UP_BLOCK, GATE_UP_BLOCK, GATE_UP_ROWS


@dataclass(frozen=True, kw_only=True)
class PackedGateUp:
    """The operands `b` and `b_scales` of scaled_mm_act_quant, and the order that they were packed from."""

    weights: Tensor
    """[2 hidden, K], contiguous, in the order of gemmill.formats.gate_up: with scales of blocks, the first block's gates, their
    ups, the next gates."""
    scales: Tensor
    """float32, one value or [2 hidden], in the same order. Scales of blocks are [K groups, 2 blocks], of rows in groups
    [K groups, 2 hidden].

    Blocks are the first gates', the first ups', and so on.
    """
    order: str
    """The order of the caller's weights."""

    @property
    def b(self) -> Tensor:
        """The weights as the op takes them: [K, 2 hidden], column-major."""
        return self.weights.t()

    @property
    def hidden(self) -> int:
        """How many results a row has."""
        return self.weights.shape[0] // 2


def prepack_gate_up(weights: Tensor, scales: Tensor, order: str = "gate_up") -> PackedGateUp:
    """Pack weights [2 hidden, K] with scales of one value, of each row, or of blocks, for scaled_mm_act_quant.

    order: "gate_up" where all gates come first, "up_gate" where all ups do, "interleaved" where gates and ups
    alternate.

    Scales of blocks are [2 hidden / g, ceil(K / g)], each of g gates or of g ups, with g = 128 or 32; hidden is a multiple
    of g. Interleaved weights have none. Scales of rows in groups are [2 hidden, ceil(K / 32)].

    Raises ValueError, in a sentence, for another order, for rows that are no multiple of 32, for blocks that hidden is no
    multiple of, and for scales of other shapes.
    """
    if order not in ORDERS:
        raise ValueError(f"gates and ups in order {order!r}, expected one of {', '.join(ORDERS)}")
    if weights.dim() != 2 or weights.shape[0] % GATE_UP_ROWS:
        raise ValueError(
            f"weights have shape {list(weights.shape)}: gates and ups are [2 hidden, K], packed in blocks of {GATE_UP_ROWS} rows"
        )
    rows, k = weights.shape
    blocks, fine = ((2 * -(-rows // (2 * g)), -(-k // g)) for g in (GATE_UP_BLOCK, FINE_GATE_UP_BLOCK))
    of_groups = rows, fine[1]
    if scales.shape in (blocks, fine):
        block = GATE_UP_BLOCK if scales.shape == blocks else FINE_GATE_UP_BLOCK
        if rows % (2 * block):
            raise ValueError(
                f"weights have shape {list(weights.shape)}, {rows // 2} gates: scales of {list(scales.shape)} are of {block} gates or "
                f"ups, pad both to a multiple of {block} with zeros"
            )
        return PackedGateUp(
            weights=pack_gate_up(weights, order, block), scales=pack_blocks(scales, order).t().contiguous(), order=order
        )
    if scales.shape == of_groups and fine[1] > 1:
        return PackedGateUp(
            weights=pack_gate_up(weights, order), scales=pack_gate_up(scales, order).t().contiguous(), order=order
        )
    if scales.numel() not in (1, rows):
        raise ValueError(
            f"scales have shape {list(scales.shape)}: expected one value, one for each of {rows} rows, {list(of_groups)} of rows in groups "
            f"of {FINE_GATE_UP_BLOCK}, or of blocks of gates or ups {list(blocks)} ({GATE_UP_BLOCK}) or {list(fine)} ({FINE_GATE_UP_BLOCK})"
        )
    of_rows = scales.reshape(-1)
    return PackedGateUp(
        weights=pack_gate_up(weights, order),
        scales=of_rows if of_rows.numel() == 1 else pack_gate_up(of_rows, order),
        order=order,
    )


@dataclass(frozen=True, kw_only=True)
class PackedGateUpExperts:
    """The operands `b` and `b_scales` of grouped_mm_act_quant, and the order that they were packed from."""

    b: Tensor
    """[E, 2 hidden, K], contiguous, each expert's in the order of gemmill.formats.gate_up."""
    scales: Tensor
    """float32 [E], [E, 2 hidden], or of blocks [E, 2 blocks, K groups], the first gates', the first ups', and so on."""
    order: str
    """The order of the caller's weights."""


def prepack_gate_up_experts(weights: Tensor, scales: Tensor, order: str = "gate_up") -> PackedGateUpExperts:
    """Pack weights [E, 2 hidden, K] of experts for grouped_mm_act_quant, each as prepack_gate_up does.

    Scales are of one value for each expert, [E] or [E, 1], of each row, or of blocks, with the experts first. Raises
    ValueError, in a sentence, as prepack_gate_up does, and for other numbers of experts.
    """
    if weights.dim() != 3 or scales.dim() < 1 or len(scales) != len(weights):
        raise ValueError(
            f"weights have shape {list(weights.shape)} and scales {list(scales.shape)}: both are of experts, weights [E, 2 hidden, K]"
        )
    if not len(weights):
        raise ValueError("weights are of 0 experts, expected one or more")
    packed = [prepack_gate_up(one, of_one, order) for one, of_one in zip(weights, scales, strict=True)]
    in_blocks = packed[0].scales.dim() == 2
    of_all = [one.scales.t() if in_blocks else one.scales for one in packed]
    if not in_blocks and of_all[0].numel() == 1:
        of_all = [one.reshape(()) for one in of_all]
    return PackedGateUpExperts(
        b=torch.stack([one.weights.view(torch.uint8) for one in packed]).view(weights.dtype),
        scales=torch.stack(of_all),
        order=order,
    )
