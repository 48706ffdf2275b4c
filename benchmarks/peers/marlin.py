"""Marlin as a contender: vLLM's kernels of 4-bit weights and bf16 activations, by vLLM's libraries.

Its weights lie as the fragments of its tensor-core instruction do. They are packed here: vLLM's own op for that ended with a CUDA error
on an H200 (2026-11-22), and the product did not. Its scales lie along K first, permuted likewise; those of nvfp4 have five bits
of exponent, relative to the largest.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.blockscaled.cases.measured import BlockScaledOperands
from gemmill.families.blockscaled.sweep import MeasuredOp
from gemmill.formats.codes import unpack
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab import Format
from harness.contenders import LocalContender
from timed.fused_experts.calls import ExpertsOperands
from timed.fused_experts.contenders import ExpertsPeer
from timed.grouped_mm.calls import MoeOperands, rows_of
from timed.grouped_mm.contenders import MoePeer

OPS = (MeasuredOp.NVFP4_BF16, MeasuredOp.MXFP4_BF16)
_E2M1 = 2 | 1 << 8 | 1 << 16 | 1 << 49
"""vLLM's name of the type: bits of exponent and of mantissa, signed, finite values only."""
_BLOCKS_OF_SM = 4
_FRAGMENT = [i + 8 * j for i in range(8) for j in range(8)]
_PAIRS = [0, 2, 1, 3]
_BF16_OVER_E2M1 = 126
"""The offset of an exponent of e2m1 in bf16."""
_RAISED = 7
"""Powers of two by which scales of nvfp4 are stored larger."""
_LARGEST_SCALE = 448.0
Packed = tuple[Tensor, Tensor, Tensor | None]
"""Weights, scales, and a factor of all."""


def marlin_contender() -> LocalContender:
    """Its dense GEMM. Raises AttributeError where vLLM's library has none, or was not loaded."""
    multiply = torch.ops._C.marlin_gemm.default
    made: dict[int, tuple[BlockScaled, Packed]] = {}
    kinds: list[tuple[str, int, int]] = []
    locks: dict[torch.device, Tensor] = {}

    def packed(x: BlockScaledOperands, i: int) -> Packed:
        """Made once of each copy of the weights; those of another class or shape go."""
        weights, kind = x.plain[i], (x.workload.op, x.call.n, x.call.k)
        if kinds != [kind]:
            made.clear()
            kinds[:] = [kind]
        if id(weights) not in made:
            alpha = x.made.given.get("alpha")
            scales = scales_of(weights, 1.0 if alpha is None else float(alpha))
            made[id(weights)] = weights, (words_of(weights.codes), *scales)
        return made[id(weights)][1]

    def bind(x: BlockScaledOperands, i: int) -> Callable[[], object]:
        q, scales, factor = packed(x, i)
        device = x.out.device
        if device not in locks:
            sms = torch.cuda.get_device_properties(device).multi_processor_count
            locks[device] = torch.zeros(sms * _BLOCKS_OF_SM, dtype=torch.int32, device=device)
        sizes = x.call.m, x.call.n, x.call.k
        a = x.made.given["a"]
        return partial(
            multiply, a, x.out, q, None, scales, None, factor, None, locks[device], _E2M1, *sizes, False, True, False
        )

    return LocalContender(name="marlin", bind=bind, suits=lambda workload: workload.op in OPS)


_BLOCKS_OF_ROWS, _LARGEST_BLOCK, _FILLED = (8, 16, 32, 48), 64, 0.9
"""Rows to which an expert's are padded: the first of which its rows fill less than this part (vLLM's fused_marlin_moe)."""


def marlin_experts() -> MoePeer:
    """Its grouped GEMM, without the sort of rows. Raises AttributeError where vLLM's library of experts was not loaded."""
    multiply = torch.ops._moe_C.moe_wna16_marlin_gemm.default
    align = torch.ops._moe_C.moe_align_block_size.default
    made: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = []

    def packed(x: MoeOperands) -> tuple[Tensor, Tensor, Tensor]:
        """Made once of each layer's weights."""
        if not made or made[0][0] is not x.b:
            made[:] = [(x.b, _packed_experts(x))]
        return made[0][1]

    def bind(x: MoeOperands, i: int) -> Callable[[], object]:
        p, device, (q, scales, factors) = x.workload, x.a.device, packed(x)
        experts = (
            torch.repeat_interleave(torch.arange(p.experts, device=device), x.offsets[i].diff()).int().reshape(-1, 1)
        )
        block, lists = _sorted(align, experts, p.experts)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        locks = torch.zeros(sms * _BLOCKS_OF_SM, dtype=torch.int32, device=device)
        routed = *lists, torch.ones(rows_of(p), 1, device=device)
        given = x.a, x.out, q, None, scales, None, factors, None, locks, *routed
        sizes, shares = (rows_of(p), p.n, p.k), (-1, -1, -1)
        return partial(multiply, *given, block, 1, False, _E2M1, *sizes, False, True, False, *shares)

    return MoePeer(name="marlin", bind=bind, kind="nvfp4")


def _sorted(align: Callable[..., object], ids: Tensor, experts: int) -> tuple[int, tuple[Tensor, Tensor, Tensor]]:
    """Rows of a block; numbers of pairs in the order of experts, whose each block is, and where they end."""
    rows = ids.numel()
    block = next((block for block in _BLOCKS_OF_ROWS if rows / experts / block < _FILLED), _LARGEST_BLOCK)
    room = min(rows + experts * (block - 1), rows * block)
    order, whose, end = (torch.empty(n, dtype=torch.int32, device=ids.device) for n in (room, -(-room // block), 1))
    align(ids, experts, block, order, whose, end, None)
    return block, (order, whose, end)


def _packed_experts(x: MoeOperands) -> tuple[Tensor, Tensor, Tensor | None]:
    """Weights, scales and a factor of each expert."""
    p = x.workload
    return _packed_weights(decoded(p.of.format, x.b, x.b_scales, p.k), 1.0)


def decoded(format: Format, blocks: Tensor, bases: Tensor, k: int) -> Iterator[BlockScaled]:
    """Of each expert codes and scales in a checkpoint's order."""
    for of_expert, base in zip(blocks, bases, strict=True):
        yield Fp4Blocks(format=format, n=len(base), k=k, blocks=of_expert, base=base).weights()[0]


def _packed_weights(experts: Iterator[BlockScaled], alpha: float) -> tuple[Tensor, Tensor, Tensor | None]:
    found = [(words_of(weights.codes), *scales_of(weights, alpha)) for weights in experts]
    words, scales, factors = zip(*found, strict=True)
    bytes_ = torch.stack([one.view(torch.uint8) for one in scales]).view(scales[0].dtype)
    return torch.stack(words), bytes_, None if factors[0] is None else torch.cat(factors)


@dataclass(frozen=True, kw_only=True)
class Ops:
    """vLLM's, by which `fused_marlin_moe` computes a layer."""

    align: Callable[..., object]
    multiply: Callable[..., object]
    activate: Callable[..., object]
    sum: Callable[..., object]


def vllms_ops() -> Ops:
    """Raises AttributeError where vLLM's two libraries were not loaded."""
    experts = torch.ops._moe_C
    return Ops(
        align=experts.moe_align_block_size.default,
        multiply=experts.moe_wna16_marlin_gemm.default,
        activate=torch.ops._C.silu_and_mul.default,
        sum=experts.moe_sum.default,
    )


def marlin_layer(ops: Ops) -> ExpertsPeer:
    """The layer as `fused_marlin_moe` computes it: rows sorted, two GEMMs and the activation between, a sum."""
    made: list[tuple[Tensor, Any]] = []

    def packed(x: ExpertsOperands) -> Any:
        """Both weights, made once of each layer's; and locks."""
        if not made or made[0][0] is not x.w13:
            made[:] = [(x.w13, (*packed_layer(x), _locks(x.x.device)))]
        return made[0][1]

    return ExpertsPeer(
        name="marlin", bind=lambda x, i: partial(_layer, ops, x, x.ids[i], *packed(x)), kinds=("nvfp4", "mxfp4")
    )


def packed_layer(x: ExpertsOperands) -> tuple[Any, Any]:
    """Both weights for Marlin, the first's gates before its ups. Bases are one power of two, which becomes a factor of all."""
    p, alpha = x.workload, float(x.w13_scales[0, 0])
    first = all_weights(p.of.format, x.w13, x.w13_scales, p.hidden)
    second = all_weights(p.of.format, x.w2, x.w2_scales, p.inner)
    return _packed_together(gates_first(first, p.experts), p.experts, alpha), _packed_together(second, p.experts, alpha)


def all_weights(format: Format, blocks: Tensor, bases: Tensor, k: int) -> BlockScaled:
    """Codes and scales of all experts' rows, one expert after another."""
    return Fp4Blocks(format=format, n=bases.numel(), k=k, blocks=blocks.flatten(0, 1), base=bases.flatten()).weights()[
        0
    ]


def _packed_together(weights: BlockScaled, experts: int, alpha: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """`_packed_weights` of all experts at once: fragments are of 64 rows, of which an expert has whole ones."""
    scales, factor = scales_of(weights, alpha)
    words, bytes_ = (
        rows.unflatten(1, (experts, -1)).transpose(0, 1).contiguous()
        for rows in (words_of(weights.codes), scales.view(torch.uint8))
    )
    return words, bytes_.view(scales.dtype), None if factor is None else factor.repeat(experts)


def gates_first(weights: BlockScaled, experts: int = 1) -> BlockScaled:
    """Rows of each expert's gates before those of its ups, of which each gate lay before its up."""
    codes, scales = (
        rows.unflatten(0, (experts, -1, 2)).transpose(1, 2).flatten(0, 2) for rows in (weights.codes, weights.scales)
    )
    return BlockScaled(format=weights.format, codes=codes, scales=scales)


def _locks(device: torch.device) -> Tensor:
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return torch.zeros(sms * _BLOCKS_OF_SM, dtype=torch.int32, device=device)


def _layer(ops: Ops, x: ExpertsOperands, ids: Tensor, first: Any, second: Any, locks: Tensor) -> None:
    p, pairs = x.workload, ids.numel()
    block, lists = _sorted(ops.align, ids, p.experts)

    def product(a: Tensor, out: Tensor, weights: Any, top: int, weighed: bool) -> None:
        q, scales, factors = weights
        sizes, shares = (len(a), out.shape[1], a.shape[1]), (-1, -1, -1)
        given = a, out, q, None, scales, None, factors, None, locks, *lists, x.weights
        ops.multiply(*given, block, top, weighed, _E2M1, *sizes, False, True, False, *shares)

    rows = x.x.new_empty((pairs, 2 * p.inner))
    product(x.x, rows, first, p.top, False)
    inner = x.x.new_empty((pairs, p.inner))
    ops.activate(inner, rows)
    parts = x.x.new_empty((pairs, p.hidden))
    product(inner, parts, second, 1, True)
    ops.sum(parts.view(p.tokens, p.top, p.hidden), x.out)


def words_of(codes: Tensor) -> Tensor:
    """Codes [N, K / 2] as words [K / 16, 2 N]: of 16 columns and 64 rows a lane of a warp has four words, one of each 16 rows.

    N = 64 a + 16 tile + 8 block + lane / 4 and K = 16 b + 8 high + 2 (lane % 4) + odd; the code lies in bits 16 odd + 8 block + 4 high.
    """
    n, k = codes.shape[0], codes.shape[1] * 2
    parts = unpack(codes, 4).view(n // 64, 4, 2, 8, k // 16, 2, 4, 2)
    ordered = parts.permute(4, 0, 3, 6, 1, 7, 2, 5).reshape(k // 16, 2 * n, 8)
    words = torch.zeros((k // 16, 2 * n), dtype=torch.int32, device=codes.device)
    for place in range(8):
        words |= ordered[..., place].int() << 4 * place
    return words


def scales_of(weights: BlockScaled, alpha: float) -> tuple[Tensor, Tensor | None]:
    """Scales as the kernel reads them, and the factor of the product: alpha, a power of two, is in the scales of mxfp4."""
    if not weights.format.has_global_scale:
        moved = (weights.scales.int() + math.frexp(alpha)[1] - 1).to(torch.uint8)
        return permuted(moved).view(torch.float8_e8m0fnu), None
    scales = weights.scales.view(torch.float8_e4m3fn).float()
    largest = float(scales.max()) or 1.0
    raised = 2.0 ** math.floor(math.log2(_LARGEST_SCALE / largest)) if largest < _LARGEST_SCALE else 1.0
    stored = scales * raised * 2.0**_RAISED
    bits = stored.masked_fill(stored < 2, 0).half().view(torch.int16).int() >> 7
    factor = alpha / raised * 2.0 ** (_BF16_OVER_E2M1 - _RAISED)
    bytes_ = permuted((bits & 0xFF).to(torch.uint8)).view(torch.float8_e4m3fn)
    return bytes_, torch.tensor([factor], device=scales.device)


def permuted(scales: Tensor) -> Tensor:
    """[N, groups] as [groups, N] in the order of fragments of 64 rows."""
    along_n = scales.t().contiguous()
    of_fragments = along_n.reshape(-1, len(_FRAGMENT))[:, _FRAGMENT]
    return of_fragments.reshape(-1, len(_PAIRS))[:, _PAIRS].reshape(along_n.shape).contiguous()
