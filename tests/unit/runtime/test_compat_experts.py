"""Grouped GEMMs under vLLM's names: cutlass_moe_mm, and the ops that prepare its calls."""

from importlib import import_module

import pytest
import torch
from torch import Tensor

from builds import TableOnly
from gemmill import grouped_mm
from gemmill.families.grouped_mm.selections import smoke
from gemmill.runtime import ops
from gemmill.vocab import Arch

E, N, K = 4, 64, 160


def codes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(torch.float8_e4m3fn)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


@pytest.fixture(scope="module")
def vllm():
    import_module("gemmill.compat.vllm.ops")
    return torch.ops._C


@pytest.mark.parametrize("tokens", [5, 40])
@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("as_in_layers", [True, False])
def test_vllms_layer_of_experts(vllm, tokens: int, per_token: bool, as_in_layers: bool) -> None:
    """Data for the calls, then the first GEMM, whose rows are put back in the order of tokens. vLLM's layers give weights as they
    are stored, its tests give them transposed."""
    top = 2
    ids = torch.rand(tokens, E, generator=torch.Generator().manual_seed(tokens)).topk(top).indices.int()
    ids[1, 0] = -1
    offsets = torch.full((E + 1,), -7, dtype=torch.int32)
    sizes1, sizes2 = (torch.full((E, 3), -7, dtype=torch.int32) for _ in range(2))
    into, back = (torch.full((tokens * top,), -7, dtype=torch.int32) for _ in range(2))
    vllm.get_cutlass_moe_mm_data(ids, offsets, sizes1, sizes2, into, back, E, N // 2, K, None, True)
    counts = [int((ids == e).sum()) for e in range(E)]
    assert offsets.tolist() == [sum(counts[:e]) for e in range(E + 1)]
    shape = (lambda rows, n, k: [n, rows, k]) if tokens * top <= 64 else (lambda rows, n, k: [rows, n, k])
    assert sizes1.tolist() == [shape(rows, N, K) for rows in counts]
    assert sizes2.tolist() == [shape(rows, K, N // 2) for rows in counts]
    assert into[-1] == -1 and back[top] == tokens * top, "an id of nobody"
    x, w = codes(tokens, K), codes(E, N, K)
    x_scales, w_scales = scales(tokens, 1) if per_token else scales(1, 1), scales(E, N, 1)
    sorted_ = x.view(torch.uint8)[into.clamp(min=0).long()].view(x.dtype)
    a_scales = x_scales[into.clamp(min=0).long()] if per_token else x_scales
    out = torch.full((tokens * top, N), torch.nan, dtype=torch.bfloat16)
    strides = [torch.full((E,), n) for n in (K, K, N)]
    b = w if as_in_layers else w.transpose(1, 2)
    vllm.cutlass_moe_mm(out, sorted_, b, a_scales, w_scales, offsets[:-1], sizes1, *strides, per_token, True)
    for token in range(tokens):
        for choice in range(top):
            expert = int(ids[token, choice])
            if expert >= 0:
                one = x[token : token + 1], w[expert : expert + 1]
                of_row = x_scales[token : token + 1] if per_token else x_scales
                want = grouped_mm(*one, of_row, w_scales[expert : expert + 1].squeeze(-1), torch.tensor([0, 1]))
                assert torch.equal(out[back[token * top + choice]], want[0])
    assert bool(out[-1].isnan().all()), "the row of nobody is written"


def test_vllms_batches_and_offsets(vllm) -> None:
    offsets = torch.zeros(E, dtype=torch.int32)
    sizes1, sizes2 = (torch.zeros(E, 3, dtype=torch.int32) for _ in range(2))
    rows = torch.tensor([3, 0, 20, 1], dtype=torch.int32)
    vllm.get_cutlass_batched_moe_mm_data(offsets, sizes1, sizes2, rows, E, 20, N, K)
    assert offsets.tolist() == [0, 20, 40, 60]
    assert sizes1.tolist() == [[n, 2 * N, K] for n in rows] and sizes2.tolist() == [[n, K, N] for n in rows]
    a, w, out = codes(80, K), codes(E, 2 * N, K), torch.full((80, 2 * N), torch.nan, dtype=torch.float16)
    given = out, a, w.transpose(1, 2), scales(1), scales(E), offsets, sizes1, offsets, offsets, offsets
    vllm.cutlass_moe_mm(*given, False, False)
    written = ~out.isnan().any(1)
    assert written.nonzero().flatten().tolist() == [0, 1, 2, *range(40, 60), 60]
    first = torch.tensor([0, 5, 5, 6, 10])
    vllm.get_cutlass_moe_mm_problem_sizes_from_expert_offsets(first, sizes1, sizes2, N, K, True)
    assert sizes1[0].tolist() == [2 * N, 5, K] and sizes2[3].tolist() == [K, 4, N]


def test_group_gemm_is_supported_where_it_is_compiled(vllm, table_of, make_manifest, monkeypatch) -> None:
    for kept, answer in ((list(smoke(Arch.SM90A)), True), ([c for c in smoke(Arch.SM90A) if c.group_size], False)):
        monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*kept), table_of(*kept)))
        assert vllm.cutlass_group_gemm_supported(90) is answer
        assert vllm.cutlass_group_gemm_supported(100) is False
