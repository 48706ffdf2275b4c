"""vLLM's grouped GEMMs of two 4-bit operands, cutlass_fp4_group_mm and cutlass_mxfp4_group_mm, by gemmill's grouped_fp4_mm.

Names and schemas are vLLM 0.33.0's. Its kernels run on Blackwell alone, where calls go to them. No tensor core of
Hopper scales blocks: each call upcasts rows of a to bf16, and the first packs the weights for gemmill's kernels.
Products of both are exact, as Blackwell's are, while they are normal numbers of bf16. So results differ by the order of
sums.
"""

from functools import partial

import torch
from torch import Tensor

import gemmill
from gemmill.compat.packed_once import packed_once
from gemmill.compat.segments import MOST_APART, apart, owners_of
from gemmill.formats.layout import LANES, TILE_ROWS, TILE_SCALES
from gemmill.formats.quantise import BlockScaled, unswizzle
from gemmill.quantize.experts import PackedExperts, prepack_experts
from gemmill.vocab.format import MXFP4, NVFP4, Format

FP4_GROUP_MM, MXFP4_GROUP_MM = "cutlass_fp4_group_mm", "cutlass_mxfp4_group_mm"
_ARGUMENTS = (
    "(Tensor(a!) out, Tensor a, Tensor b, Tensor a_blockscale, Tensor b_blockscales,{alphas} Tensor problem_sizes, "
    "Tensor expert_offsets, Tensor sf_offsets) -> ()"
)
SCHEMAS = {
    FP4_GROUP_MM: _ARGUMENTS.format(alphas=" Tensor alphas,"),
    MXFP4_GROUP_MM: _ARGUMENTS.format(alphas=""),
}


def cutlass_fp4_group_mm(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_blockscale: Tensor,
    b_blockscales: Tensor,
    alphas: Tensor,
    problem_sizes: Tensor,
    expert_offsets: Tensor,
    sf_offsets: Tensor,
) -> None:
    """out = alphas[e] a b[e]^T for rows of expert e from expert_offsets[e] on, as many as problem_sizes[e, 0], without
    writing others.

    a is uint8 [M, K / 2] of nvfp4 codes, b [E, N, K / 2]. Scales are e4m3, swizzled: b_blockscales [E, rows padded to
    128, padded to 4], a_blockscale those of all experts, of which expert e's begin at row sf_offsets[e]. out is
    bfloat16 [M, N], or float16 with results rounded to bfloat16 before. Every 256 experts are a launch.

    Raises RuntimeError, in a sentence, for tensors that do not fit one another, and as packed_once and grouped_fp4_mm do.
    """
    _group_mm(
        FP4_GROUP_MM, NVFP4, out, a, b, a_blockscale, b_blockscales, alphas, problem_sizes, expert_offsets, sf_offsets
    )


def cutlass_mxfp4_group_mm(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_blockscale: Tensor,
    b_blockscales: Tensor,
    problem_sizes: Tensor,
    expert_offsets: Tensor,
    sf_offsets: Tensor,
) -> None:
    """The same of mxfp4 codes, whose scales are ue8m0 bytes for 32 codes each, without alphas."""
    _group_mm(
        MXFP4_GROUP_MM, MXFP4, out, a, b, a_blockscale, b_blockscales, None, problem_sizes, expert_offsets, sf_offsets
    )


ANSWERS = {FP4_GROUP_MM: cutlass_fp4_group_mm, MXFP4_GROUP_MM: cutlass_mxfp4_group_mm}
_BLACKWELL = 10
"""The first compute capability that vLLM's own kernels run on."""


def answer(vllm: str, name: str, out: Tensor, *given: Tensor) -> None:
    """A call of one of ANSWERS; on Blackwell by vLLM's library, if its namespace has the op now."""
    if out.is_cuda and torch.cuda.get_device_capability(out.device)[0] >= _BLACKWELL:
        of_vllm, _ = torch._C._jit_get_operation(f"{vllm}::{name}")
        if of_vllm:
            return of_vllm(out, *given)
    return ANSWERS[name](out, *given)


def _group_mm(
    name: str,
    format: Format,
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    alphas: Tensor | None,
    problem_sizes: Tensor,
    expert_offsets: Tensor,
    sf_offsets: Tensor,
) -> None:
    _check(name, format, out, a, b, a_scales, b_scales)
    experts = len(b)
    if problem_sizes.shape != (experts, 3) or min(len(expert_offsets), len(sf_offsets)) < experts:
        raise RuntimeError(
            f"{name}: problem_sizes has shape {list(problem_sizes.shape)}, expert_offsets {list(expert_offsets.shape)} and sf_offsets "
            f"{list(sf_offsets.shape)}, expected [{experts}, 3] and an offset for each of {experts} experts"
        )
    pack = partial(_packed, format, b, b_scales)
    packed = packed_once(name, (b, b_scales), str(format), pack)
    begins = expert_offsets[:experts].to(torch.int32)
    ends = begins + problem_sizes[:, 0]
    owners, used = owners_of(len(a), begins, ends)
    places = sf_offsets[owners] + (torch.arange(len(a), dtype=torch.int64, device=a.device) - begins[owners])
    scales = _plain_scales(a_scales, torch.where(used, places, 0), a.shape[1] * 2 // format.group)
    x = _widened(format, a, scales.masked_fill_(~used[:, None], 0))
    results = out if out.dtype == torch.bfloat16 else torch.empty_like(out, dtype=torch.bfloat16)
    mm = torch.ops.gemmill.grouped_fp4_mm.default
    for first in range(0, experts, MOST_APART):
        own = slice(first, first + MOST_APART)
        blocks, base, of = packed.blocks[own], packed.base[own], None if alphas is None else alphas[own]
        mm(results, x, blocks, None, base, of, None, *apart(begins[own], ends[own]), None, str(format))
    if results is not out:
        out.copy_(torch.where(used[:, None], results.to(out.dtype), out))


def _check(name: str, format: Format, out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> None:
    for role, x, rank in (("a", a, 2), ("b", b, 3)):
        if x.dtype != torch.uint8 or x.dim() != rank or not x.is_contiguous():
            raise RuntimeError(
                f"{name}: {role} is {x.dtype} {list(x.shape)}, expected torch.uint8 of {rank} dimensions, contiguous: two codes in each"
            )
    if a.shape[1] != b.shape[2] or not a.shape[1] or 2 * a.shape[1] % format.group:
        raise RuntimeError(
            f"{name}: a is {list(a.shape)} and b {list(b.shape)}, expected codes of one K, a multiple of {format}'s group of {format.group}"
        )
    if out.dtype not in (torch.bfloat16, torch.float16) or out.shape != (len(a), b.shape[1]):
        raise RuntimeError(
            f"{name}: out is {out.dtype} {list(out.shape)}, expected torch.bfloat16 or torch.float16 {[len(a), b.shape[1]]}"
        )
    columns = _up(2 * a.shape[1] // format.group, TILE_SCALES)
    expected = [len(b), _up(b.shape[1], TILE_ROWS), columns]
    for role, x, fits in (
        (
            "a_blockscale",
            a_scales,
            a_scales.dim() == 2 and a_scales.shape[1] == columns and len(a_scales) % TILE_ROWS == 0,
        ),
        ("b_blockscales", b_scales, list(b_scales.shape) == expected),
    ):
        if x.element_size() != 1 or not fits or not x.is_contiguous():
            shapes = expected if x is b_scales else f"[a multiple of {TILE_ROWS}, {columns}]"
            raise RuntimeError(
                f"{name}: {role} is {x.dtype} {list(x.shape)}, expected bytes {shapes}, swizzled and contiguous"
            )


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _packed(format: Format, codes: Tensor, scales: Tensor) -> PackedExperts:
    _, n, half = codes.shape
    groups = 2 * half // format.group
    experts = [
        BlockScaled(format=format, codes=of, scales=unswizzle(by, n, groups))
        for of, by in zip(codes, scales.view(torch.uint8), strict=True)
    ]
    return prepack_experts(experts)


def _plain_scales(swizzled: Tensor, rows: Tensor, groups: int) -> Tensor:
    """uint8 [len(rows), groups]: the scales of rows of a swizzled tensor [rows, padded groups]."""
    tiles = swizzled.view(torch.uint8).view(
        -1, swizzled.shape[1] // TILE_SCALES, LANES, TILE_ROWS // LANES, TILE_SCALES
    )
    tile, row = rows // TILE_ROWS, rows % TILE_ROWS
    return tiles[tile, :, row % LANES, row // LANES].flatten(1)[:, :groups].contiguous()


def _widened(format: Format, codes: Tensor, scales: Tensor) -> Tensor:
    """code * scale, bf16 [M, K]: exact, but for numbers of mxfp4 beyond bf16's."""
    if format == NVFP4:
        one = torch.ones(1, device=codes.device, dtype=torch.float32)
        return gemmill.scaled_nvfp4_dequant(codes, scales, one, torch.bfloat16, is_sf_swizzled_layout=False)
    return gemmill.scaled_mxfp4_dequant(codes, scales, torch.bfloat16, is_sf_swizzled_layout=False)
