"""Marlin as a contender: vLLM's kernels of 4-bit weights and bf16 activations, by vLLM's libraries.

Its weights lie as the fragments of its tensor-core instruction do. They are packed here: vLLM's own op for that ended with a CUDA error
on an H200 (2026-11-22), and the product did not. Its scales lie along K first, permuted likewise; those of nvfp4 have five bits
of exponent, relative to the largest.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemmill.families.blockscaled.cases.measured import BlockScaledOperands
from gemmill.families.blockscaled.sweep import Op
from gemmill.formats.codes import unpack
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.quantise import BlockScaled
from harness.contenders import LocalContender
from harness.moe_contenders import MoePeer

if TYPE_CHECKING:
    from timed.moe import MoeOperands

OPS = (Op.NVFP4_BF16, Op.MXFP4_BF16)
_E2M1 = 2 | 1 << 8 | 1 << 16 | 1 << 49
"""What vLLM calls the type: bits of exponent and of mantissa, signed, finite values only."""
_BLOCKS_OF_SM = 4
_FRAGMENT = [i + 8 * j for i in range(8) for j in range(8)]
_PAIRS = [0, 2, 1, 3]
_BF16_OVER_E2M1 = 126
"""What an exponent of e2m1 gains as bf16."""
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
        weights, kind = x.plain[i], (x.problem.op, x.call.n, x.call.k)
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

    return LocalContender(name="marlin", bind=bind, suits=lambda problem: problem.op in OPS)


_BLOCKS_OF_ROWS, _LARGEST_BLOCK, _FILLED = (8, 16, 32, 48), 64, 0.9
"""Rows to which an expert's are padded: the first of which its rows fill less than this part (vLLM's fused_marlin_moe)."""


def marlin_experts() -> MoePeer:
    """Its grouped GEMM, without what sorts rows. Raises AttributeError where vLLM's library of experts was not loaded."""
    multiply = torch.ops._moe_C.moe_wna16_marlin_gemm.default
    align = torch.ops._moe_C.moe_align_block_size.default
    made: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = []

    def packed(x: "MoeOperands") -> tuple[Tensor, Tensor, Tensor]:
        """Made once of each layer's weights."""
        if not made or made[0][0] is not x.b:
            made[:] = [(x.b, _packed_experts(x))]
        return made[0][1]

    def bind(x: "MoeOperands", i: int) -> Callable[[], object]:
        p, device, (q, scales, factors) = x.problem, x.a.device, packed(x)
        experts = (
            torch.repeat_interleave(torch.arange(p.experts, device=device), x.offsets[i].diff()).int().reshape(-1, 1)
        )
        of_expert = p.rows / p.experts
        block = next((rows for rows in _BLOCKS_OF_ROWS if of_expert / rows < _FILLED), _LARGEST_BLOCK)
        room = min(p.rows + p.experts * (block - 1), p.rows * block)
        ids, whose = (torch.empty(size, dtype=torch.int32, device=device) for size in (room, -(-room // block)))
        end = torch.empty(1, dtype=torch.int32, device=device)
        align(experts, p.experts, block, ids, whose, end, None)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        locks = torch.zeros(sms * _BLOCKS_OF_SM, dtype=torch.int32, device=device)
        routed = ids, whose, end, torch.ones(p.rows, 1, device=device)
        given = x.a, x.out, q, None, scales, None, factors, None, locks, *routed
        sizes, shares = (p.rows, p.n, p.k), (-1, -1, -1)
        return partial(multiply, *given, block, 1, False, _E2M1, *sizes, False, True, False, *shares)

    return MoePeer(name="marlin", bind=bind, kind="nvfp4")


def _packed_experts(x: "MoeOperands") -> tuple[Tensor, Tensor, Tensor]:
    """Weights, scales and a factor of each expert."""
    p, found = x.problem, []
    for blocks, base in zip(x.b, x.b_scales, strict=True):
        weights, _ = Fp4Blocks(format=p.format, n=p.n, k=p.k, blocks=blocks, base=base).weights()
        found.append((words_of(weights.codes), *scales_of(weights, 1.0)))
    words, scales, factors = zip(*found, strict=True)
    bytes_ = torch.stack([one.view(torch.uint8) for one in scales]).view(torch.float8_e4m3fn)
    return torch.stack(words), bytes_, torch.cat(factors)


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
    """Scales as the kernel reads them, and what it multiplies all by: alpha, a power of two, is in the scales of mxfp4."""
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
