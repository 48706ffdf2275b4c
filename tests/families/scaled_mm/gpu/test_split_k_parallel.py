"""Slices of K that meet in a workspace: graphs, streams, and memory that held anything before."""

import pytest
import torch

import gemmill
from gemmill.vocab import DType, TileScheduler

SIZES = (963, 864, 4096)


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The variants of a build for bf16 and e4m3 whose results are bf16, those of scales in groups last."""
    found = [
        entry
        for entry in gemmill.variants(op="cutlass_scaled_mm")
        if entry.config.design.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL
        and entry.config.out_dtype is DType.BF16
        and entry.config.operands.a_dtype.is_float
    ]
    if not found:
        pytest.skip("the build has none")
    return [entry.name for entry in sorted(found, key=lambda entry: entry.config.operands.group_size)]


def operands(name: str, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Small integers, whose products are exact."""
    m, n, k = SIZES
    random = torch.Generator(device).manual_seed(k)
    dtype = torch.bfloat16 if "_bf16_bf16_f32_" in name else torch.float8_e4m3fn

    def whole(rows: int) -> torch.Tensor:
        return torch.randint(-2, 3, (rows, k), generator=random, device=device).to(dtype)

    of_groups = "_groupblock128strided_" in name
    a_scales, b_scales = ((m, k // 128), (k // 128, -(-n // 128))) if of_groups else ((1,), (1,))
    ones = (torch.ones(shape, dtype=torch.float32, device=device) for shape in (a_scales, b_scales))
    return whole(m), whole(n).t(), *ones


def wanted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float()).bfloat16()


def test_a_graph_is_replayed_with_one_ticket(names, device) -> None:
    for name in names:
        a, b, s, t = operands(name, device)
        out = torch.empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16, device=device)
        graph = torch.cuda.CUDAGraph()
        with gemmill.use_variant(name):
            torch.ops.gemmill.cutlass_scaled_mm(out, a, b, s, t, None)  # the kernel is loaded
            with torch.cuda.graph(graph):
                torch.ops.gemmill.cutlass_scaled_mm(out, a, b, s, t, None)
        right = wanted(a, b)
        for _ in range(5):
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, right), name


def test_calls_in_two_streams_have_workspaces_of_their_own(names, device) -> None:
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    a, b, s, t = operands(names[0], device)
    right = wanted(a, b)
    outs = [torch.full((30, *right.shape), float("nan"), dtype=torch.bfloat16, device=device) for _ in streams]
    torch.cuda.synchronize(device)
    with gemmill.use_variant(names[0]):
        for i in range(30):
            for stream, out in zip(streams, outs, strict=True):
                with torch.cuda.stream(stream):
                    torch.ops.gemmill.cutlass_scaled_mm(out[i], a, b, s, t, None)
    torch.cuda.synchronize(device)
    assert all(torch.equal(one, right) for out in outs for one in out)


def test_the_workspace_may_have_held_anything(names, device) -> None:
    a, b, s, t = operands(names[0], device)
    right = wanted(a, b)
    for byte in (0x00, 0xFF, 0x55):
        torch.empty(64 << 20, dtype=torch.uint8, device=device).fill_(byte)  # memory that the allocator gives next
        with gemmill.use_variant(names[0]):
            got = gemmill.cutlass_scaled_mm(a, b, s, t, torch.bfloat16)
        assert torch.equal(got, right)


def test_slices_of_the_same_number_give_the_same_bits_at_all_rows(names, device) -> None:
    """Sums of a row do not depend on the others of a batch."""
    a, b, s, t = operands(names[0], device)
    a, b = torch.randn(a.shape, device=device).to(a.dtype), torch.randn(b.shape[::-1], device=device).to(b.dtype).t()
    with gemmill.use_variant(names[0]):
        whole = gemmill.cutlass_scaled_mm(a, b, s, t, torch.bfloat16)
        for rows in (1, 7, 130, 500):
            assert torch.equal(gemmill.cutlass_scaled_mm(a[:rows], b, s, t, torch.bfloat16), whole[:rows])
