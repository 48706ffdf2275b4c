"""4-bit weights of all experts of a layer in one tensor, in the order in which grouped kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.formats.fp4_blocks import CHUNK
from gemmill.formats.layout import SIDE
from gemmill.formats.quantise import BlockScaled
from gemmill.formats.sparse_fp4 import SparseFp4
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.quantize.report import PrepackReport
from gemmill.quantize.sparse_blocks import to_sparse_blocks
from gemmill.vocab.format import MXFP4, NVFP4, Format

ACTIVATIONS = ("bf16", "e4m3")
"""The activations that multiply packed weights."""


@dataclass(frozen=True, kw_only=True)
class PackedExperts:
    """Weights [E, N, K] as `gemmill.grouped_mm` takes them with a format."""

    format: Format
    """nvfp4 or mxfp4."""
    activations: str
    """"bf16" or "e4m3"."""
    n: int
    k: int
    blocks: Tensor
    """uint8 [E, N / 64 rounded up, padded K / 64 or / 128, bytes of a block]."""
    base: Tensor
    """f32 [E, N]: the factors of rows of weights."""
    reports: tuple[PrepackReport, ...]
    """The report of each expert; none of 2:4 sparse weights, which lose nothing here."""
    sparse: str = ""
    """"" of dense weights, "_2to4" of 2:4 sparse ones, "_2to4_8" where 8 columns share a scale."""


def prepack_experts(
    experts: Sequence[BlockScaled],
    *,
    activations: str = "bf16",
    allow_requant: bool = False,
    rounded: bool = False,
) -> PackedExperts:
    """Pack the weights [N, K] of experts of one format and size, one after another. It does not change its input.

    activations: "bf16" of nvfp4 and mxfp4; "e4m3" of mxfp4, whose scales then fold into the weights exactly. rounded:
    pack nvfp4 for "e4m3", which rounds products of codes and scales to e4m3. Reports give the error. allow_requant: as
    of `gemmill.quantize.prepack.prepack`. A global scale is no part of this: its inverse is the expert's alpha.

    Raises ValueError, in a sentence, for no experts, for experts that differ, and for arguments that do not go
    together. It names a row whose scales spread too far by its expert and number.
    """
    _check(experts, activations, rounded)
    first, op = experts[0], "fp4_weight_mm" if activations == "bf16" else "mxfp4_fp8_mm"
    one = torch.ones(1, device=first.codes.device, dtype=torch.float32) if rounded else None
    if rounded:
        op = "nvfp4_fp8_mm_rounded"
    blocks, bases, reports = None, [], []
    for i, weights in enumerate(experts):
        try:
            ready = prepack(weights, for_op=op, allow_requant=allow_requant, global_scale=one)
            packed = to_blocks(ready) if activations == "bf16" else to_folded_blocks(ready)
        except ValueError as error:
            raise ValueError(f"expert {i}: {error}") from error
        if blocks is None:
            blocks = packed.blocks.new_empty(len(experts), *packed.blocks.shape)
        blocks[i] = packed.blocks
        bases.append(packed.base)
        reports.append(ready.report)
    assert blocks is not None
    return PackedExperts(
        format=first.format,
        activations=activations,
        n=first.codes.shape[0],
        k=first.k,
        blocks=blocks,
        base=torch.stack(bases),
        reports=tuple(reports),
    )


def stacked_blocks(format: Format, codes: Tensor, scales: Tensor, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Blocks and bases as `prepack_experts` makes them for bf16, of codes [E, N, K / 2] and scales [E, N, K / group].

    It packs some experts at a time, so that a layer of small experts takes few passes. `order` lists the source row of
    each packed row. Raises ValueError as `prepack` does, and names the experts whose rows were together.
    """
    experts, n, half = codes.shape
    at_once = max(CHUNK // max(2 * n * half, 1), 1) if n % SIDE == 0 else 1  # blocks hold no rows of two experts
    blocks, bases = None, codes.new_empty((experts, n), dtype=torch.float32)
    for start in range(0, experts, at_once):
        part = slice(start, min(start + at_once, experts))
        some = [x[part] if order is None else x[part][:, order] for x in (codes, scales)]
        rows = BlockScaled(format=format, codes=some[0].flatten(0, 1), scales=some[1].flatten(0, 1))
        try:
            made = to_blocks(prepack(rows, for_op="fp4_weight_mm"))
        except ValueError as error:
            raise ValueError(f"experts {part.start} to {part.stop - 1} of {n} rows, together: {error}") from error
        if blocks is None:
            blocks = made.blocks.new_empty((experts, -(-n // SIDE), *made.blocks.shape[1:]))
        blocks[part] = made.blocks.unflatten(0, (-1, blocks.shape[1]))
        bases[part] = made.base.view(-1, n)
    assert blocks is not None
    return blocks, bases


@dataclass(frozen=True, kw_only=True)
class PackedGatedExperts:
    """Weights of a layer as `gemmill.fused_experts` takes them with a format."""

    w13: PackedExperts
    """The weights of gates and ups, each gate before its up."""
    w2: PackedExperts

    @property
    def format(self) -> str:
        """The format's name in `gemmill.fused_experts`: the format, with "_2to4" of sparse weights, or "_e4m3" of
        folded ones.
        """
        return f"{self.w13.format}{self.w13.sparse}{'_e4m3' if self.w13.activations == 'e4m3' else ''}"


ORDERS = ("gate_up", "up_gate", "interleaved")
"""Orders of rows of gates and ups: all gates first, all ups first, or each gate before its up."""


def prepack_gated_experts(
    w13: Sequence[BlockScaled] | SparseFp4,
    w2: Sequence[BlockScaled] | SparseFp4,
    *,
    order: str = "gate_up",
    w13_global_scales: Tensor | None = None,
    w2_global_scales: Tensor | None = None,
    activations: str = "bf16",
    rounded: bool = False,
) -> PackedGatedExperts:
    """Pack the weights of a layer's experts: w13 [2 I, K] of each, rows in `order`, and w2 [K, I].

    Global scales are float32, and divide. Those of w13 are [E], or [E, 2] of gates and of ups. Those of w2 are [E].
    They become part of the bases. 2:4 sparse weights have their own factors: give no global scales, and both sparse.
    `activations` and `rounded` are as of `prepack_experts`; sparse weights are for "bf16".

    Raises ValueError, in a sentence, for another order, for sizes that disagree, for sparse weights together with dense
    ones, and as `prepack_experts`.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected {', '.join(map(repr, ORDERS[:-1]))} or {ORDERS[-1]!r}")
    first, second = _shapes(w13), _shapes(w2)
    if len(first) != len(second):
        raise ValueError(f"w13 has {len(first)} experts and w2 has {len(second)}: each expert has both")
    for i, ((gates, k), (rows, inner)) in enumerate(zip(first, second, strict=True)):
        if gates != 2 * inner or k != rows:
            raise ValueError(
                f"expert {i}: w13 is {gates} x {k} and w2 {rows} x {inner}, expected w13 of {2 * inner} x {rows} for this w2"
            )
    if isinstance(w13, SparseFp4) and isinstance(w2, SparseFp4):
        if (
            w13_global_scales is not None
            or w2_global_scales is not None
            or activations != "bf16"
            or w13.group != w2.group
        ):
            raise ValueError(
                f"2:4 sparse weights with scales of {w13.group} and {w2.group} columns for {activations} activations: they have factors of "
                "their own, one group, and are for bf16"
            )
        return PackedGatedExperts(w13=_sparse(w13, order), w2=_sparse(w2, "interleaved"))
    if isinstance(w13, SparseFp4) or isinstance(w2, SparseFp4):
        raise ValueError("one of w13 and w2 is 2:4 sparse and the other is dense: both are, or none")
    how: dict[str, Any] = {"activations": activations, "rounded": rounded}
    packed = prepack_experts([_woven(x, order) for x in w13], **how), prepack_experts(w2, **how)
    return PackedGatedExperts(
        w13=_on_global_scales("w13", packed[0], w13_global_scales, 2),
        w2=_on_global_scales("w2", packed[1], w2_global_scales, 1),
    )


def _shapes(weights: Sequence[BlockScaled] | SparseFp4) -> list[tuple[int, int]]:
    """Rows and columns of each expert's."""
    if isinstance(weights, SparseFp4):
        experts, n, k = weights.shape
        return [(n, k)] * experts
    return [(x.codes.shape[0], x.k) for x in weights]


def _sparse(weights: SparseFp4, order: str) -> PackedExperts:
    """2:4 sparse weights with rows in turns, one expert after another."""
    experts, n, k = weights.shape
    rows = rows_in_turns(n, order, weights.codes.device)
    each = [to_sparse_blocks(weights, e, rows) for e in range(experts)]
    return PackedExperts(
        format=NVFP4,
        activations="bf16",
        n=n,
        k=k,
        blocks=torch.stack([x.blocks for x in each]),
        base=torch.stack([x.base for x in each]),
        reports=(),
        sparse="_2to4" if weights.group == NVFP4.group else f"_2to4_{weights.group}",
    )


def _woven(weights: BlockScaled, order: str) -> BlockScaled:
    """Weights whose rows in `order` alternate: each gate before its up."""
    if order == "interleaved":
        return weights
    rows = rows_in_turns(weights.codes.shape[0], order, weights.codes.device)
    return BlockScaled(format=weights.format, codes=weights.codes[rows], scales=weights.scales[rows])


def rows_in_turns(count: int, order: str, device: torch.device) -> Tensor:
    """Numbers of rows in `order`, each gate before its up."""
    rows = torch.arange(count, device=device, dtype=torch.int64)
    if order == "interleaved":
        return rows
    first, second = rows.chunk(2)
    return torch.stack((first, second) if order == "gate_up" else (second, first), dim=1).flatten()


def _on_global_scales(name: str, packed: PackedExperts, scales: Tensor | None, kinds: int) -> PackedExperts:
    """Weights with bases divided by the global scales of each expert's `kinds` of rows, which take turns."""
    if scales is None:
        return packed
    count = len(packed.base)
    if scales.numel() not in (count, count * kinds):
        wanted = f"[{count}] or [{count}, {kinds}]" if kinds > 1 else f"[{count}]"
        raise ValueError(f"{name}_global_scales has shape {list(scales.shape)}, expected {wanted}")
    divisors = scales.to(packed.base.device, torch.float32).reshape(count, 1, -1)
    bases = (packed.base.view(count, -1, kinds) / divisors).view(count, -1)
    return replace(packed, base=bases)


def _check(experts: Sequence[BlockScaled], activations: str, rounded: bool) -> None:
    if not experts:
        raise ValueError("there are no experts, expected the weights of one or more")
    if activations not in ACTIVATIONS:
        raise ValueError(f"activations are {activations!r}, expected {' or '.join(map(repr, ACTIVATIONS))}")
    first = experts[0]
    if rounded and (activations, first.format) != ("e4m3", NVFP4):
        raise ValueError(
            f"rounded is True for experts of {first.format} and {activations} activations: {NVFP4} alone is rounded, for e4m3"
        )
    offered = (NVFP4, MXFP4) if activations == "bf16" else (NVFP4,) if rounded else (MXFP4,)
    if first.format not in offered:
        raise ValueError(
            f"experts of {first.format} for {activations} activations, expected {' or '.join(map(str, offered))}"
        )
    for i, weights in enumerate(experts):
        found, wanted = ((x.format, list(x.codes.shape)) for x in (weights, first))
        if found != wanted:
            raise ValueError(
                f"expert {i} has codes of {found[0]} {found[1]} and expert 0 of {wanted[0]} {wanted[1]}: all are of one format and size"
            )
