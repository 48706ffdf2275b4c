"""vLLM's grouped GEMM, cutlass_moe_mm, and the ops that prepare its calls, by gemmill's grouped_mm.

Names and schemas are vLLM 0.33.0's. torch's ops prepare calls, in a captured graph too; where vLLM's library is loaded,
its own kernels prepare them.
"""

from typing import Any

import torch
from torch import Tensor

from gemmill.compat.segments import apart
from gemmill.runtime.sizes import size

MOE_MM = "cutlass_moe_mm"
SCHEMAS = {
    MOE_MM: "(Tensor(a!) out_tensors, Tensor a_tensors, Tensor b_tensors, Tensor a_scales, Tensor b_scales, "
    "Tensor expert_offsets, Tensor problem_sizes, Tensor a_strides, Tensor b_strides, Tensor c_strides, bool per_act_token, "
    "bool per_out_ch) -> ()",
    "get_cutlass_moe_mm_data": "(Tensor topk_ids, Tensor(a!) expert_offsets, Tensor(b!) problem_sizes1, "
    "Tensor(c!) problem_sizes2, Tensor(d!) input_permutation, Tensor(e!) output_permutation, int num_experts, int n, int k, "
    "Tensor? blockscale_offsets, bool is_gated) -> ()",
    "get_cutlass_moe_mm_problem_sizes_from_expert_offsets": "(Tensor expert_first_token_offset, Tensor(a!) problem_sizes1, "
    "Tensor(b!) problem_sizes2, int n, int k, bool swap_ab) -> ()",
    "get_cutlass_batched_moe_mm_data": "(Tensor(a!) expert_offsets, Tensor(b!) problem_sizes1, Tensor(c!) problem_sizes2, "
    "Tensor expert_num_tokens, int num_local_experts, int padded_m, int n, int k) -> ()",
}
SWAPPED_ROWS = 64
"""The number of rows up to which vLLM takes each problem transposed, as N x M x K (run_cutlass_moe_mm_sm90)."""
SCALE_ROWS = 128
"""Rows of block scales are padded to multiples of it."""


def cutlass_moe_mm(
    out_tensors: Tensor,
    a_tensors: Tensor,
    b_tensors: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    expert_offsets: Tensor,
    problem_sizes: Tensor,
    a_strides: Tensor,
    b_strides: Tensor,
    c_strides: Tensor,
    per_act_token: bool,
    per_out_ch: bool,
) -> None:
    """Rows from expert_offsets[e] on, as many as problem_sizes[e] says, times b_tensors[e]. b_tensors is [E, K, N] with
    contiguous columns, as vLLM's tests have it, or [E, N, K], as its layers do. The strides are the tensors' own and are not
    read. Raises RuntimeError as grouped_mm does.

    Segments need not follow one another, so each becomes two of grouped_mm's: its rows, and those of nobody behind it.
    """
    experts = size(b_tensors, 0)
    ranked = (("a_tensors", a_tensors, 2), ("b_tensors", b_tensors, 3), ("expert_offsets", expert_offsets, 1))
    for name, x, rank in ranked:
        if x.dim() != rank:
            raise RuntimeError(f"{MOE_MM}: {name} has {x.dim()} dimensions {list(x.shape)}, expected {rank}")
    if problem_sizes.shape != (experts, 3) or len(expert_offsets) < experts:
        raise RuntimeError(
            f"{MOE_MM}: problem_sizes has shape {list(problem_sizes.shape)} and expert_offsets {list(expert_offsets.shape)}, expected "
            f"[{experts}, 3] and an offset for each of {experts} experts"
        )
    rows = problem_sizes[:, 1 if a_tensors.shape[0] <= SWAPPED_ROWS else 0]
    begins = expert_offsets[:experts].to(torch.int32)
    ends, owners = apart(begins, begins + rows)
    out, a = out_tensors, a_tensors
    as_in_layers = b_tensors.shape[2] == a.shape[1] and b_tensors.stride(2) == 1
    b = b_tensors if as_in_layers else b_tensors.transpose(1, 2)
    scales = b_scales
    if experts and b_scales.numel() % experts == 0:
        scales = b_scales.reshape(experts, -1) if per_out_ch else b_scales.reshape(-1)
    torch.ops.gemmill.grouped_mm.default(out, a, b, a_scales.reshape(-1, 1), scales, ends, owners)


def _fill_sizes(problem_sizes: Tensor, rows: Tensor, n: int, k: int, *, swapped: bool) -> None:
    problem_sizes[:, 1 if swapped else 0] = rows
    problem_sizes[:, 0 if swapped else 1] = n
    problem_sizes[:, 2] = k


def _fill_both(sizes1: Tensor, sizes2: Tensor, rows: Tensor, n: int, k: int, *, parts: int, swapped: bool) -> None:
    """The problem sizes of the two grouped GEMMs of a layer: to `parts` times n columns, and back to k."""
    _fill_sizes(sizes1, rows, parts * n, k, swapped=swapped)
    _fill_sizes(sizes2, rows, k, n, swapped=swapped)


def get_cutlass_moe_mm_data(
    topk_ids: Tensor,
    expert_offsets: Tensor,
    problem_sizes1: Tensor,
    problem_sizes2: Tensor,
    input_permutation: Tensor,
    output_permutation: Tensor,
    num_experts: int,
    n: int,
    k: int,
    blockscale_offsets: Tensor | None = None,
    is_gated: bool = True,
) -> None:
    """Offsets, problem sizes and permutations of topk_ids int32 [tokens, top]. Permutations say which token each sorted row
    is of, and where the row of each (token, expert) is. Ids of no expert come last: input_permutation is -1 there,
    output_permutation tokens * top.

    Within an expert rows are in the order of tokens; vLLM's are in any order.
    """
    ids, top = topk_ids.flatten().long(), topk_ids.shape[1]
    known = torch.where((ids >= 0) & (ids < num_experts), ids, num_experts)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, known, torch.ones_like(known))
    swapped = blockscale_offsets is None and ids.numel() <= SWAPPED_ROWS
    parts = 2 if is_gated else 1
    _fill_both(problem_sizes1, problem_sizes2, counts[:-1], n, k, parts=parts, swapped=swapped)
    _fill_offsets(expert_offsets, counts[:-1])
    if blockscale_offsets is not None:
        _fill_offsets(blockscale_offsets, (counts[:-1] + SCALE_ROWS - 1) // SCALE_ROWS * SCALE_ROWS)
    order = torch.sort(known, stable=True).indices
    is_known = known[order] < num_experts
    input_permutation.copy_(torch.where(is_known, order // top, -1))
    places = torch.arange(ids.numel(), device=ids.device, dtype=torch.int64)
    flat = torch.empty_like(places).scatter_(0, order, torch.where(is_known, places, ids.numel()))
    output_permutation.copy_(flat.view_as(output_permutation))


def _fill_offsets(offsets: Tensor, counts: Tensor) -> None:
    offsets[:1] = 0
    offsets[1 : counts.numel() + 1] = counts.cumsum(0)


def get_cutlass_moe_mm_problem_sizes_from_expert_offsets(
    expert_first_token_offset: Tensor, problem_sizes1: Tensor, problem_sizes2: Tensor, n: int, k: int, swap_ab: bool
) -> None:
    """Problem sizes of both GEMMs of a gated layer, of offsets int64 [E + 1]."""
    rows = expert_first_token_offset.diff()
    _fill_both(problem_sizes1, problem_sizes2, rows, n, k, parts=2, swapped=swap_ab)


def get_cutlass_batched_moe_mm_data(
    expert_offsets: Tensor,
    problem_sizes1: Tensor,
    problem_sizes2: Tensor,
    expert_num_tokens: Tensor,
    num_local_experts: int,
    padded_m: int,
    n: int,
    k: int,
) -> None:
    """Offsets and problem sizes of experts that each have room for padded_m rows, of a gated layer."""
    expert_offsets[:num_local_experts] = padded_m * torch.arange(
        num_local_experts, device=expert_offsets.device, dtype=torch.int64
    )
    rows, swapped = expert_num_tokens[:num_local_experts], num_local_experts * padded_m <= SWAPPED_ROWS
    _fill_both(problem_sizes1, problem_sizes2, rows, n, k, parts=2, swapped=swapped)


PREPARES = {
    function.__name__: function
    for function in (
        get_cutlass_moe_mm_data,
        get_cutlass_moe_mm_problem_sizes_from_expert_offsets,
        get_cutlass_batched_moe_mm_data,
    )
}


def prepare(vllm: str, name: str, *given: Any, **named: Any) -> None:
    """One of PREPARES by vLLM's library, if its namespace has it now, else by torch's ops."""
    of_vllm, _ = torch._C._jit_get_operation(f"{vllm}::{name}")
    (of_vllm or PREPARES[name])(*given, **named)
