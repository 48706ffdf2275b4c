"""Under batch invariance a prompt in chunks has the bits of the whole prompt, with the slices that the build itself chooses."""

import pytest
import torch

import gemmill

CHUNKS = (33, 97, 300, 170)
"""Rows of each chunk, behind a prefix: none ends at a tile of rows or of tokens. On a CPU the first alone."""


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (6, 1)])
def test_chunks_have_the_bits_of_the_whole(heads: int, kv_heads: int, device: torch.device) -> None:
    prefix, chunks = (5000, CHUNKS) if device.type == "cuda" else (20, CHUNKS[:1])
    rows = sum(chunks)
    length, random = prefix + rows, torch.Generator(device).manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float32, device=device, generator=random).bfloat16()

    pages = -(-length // 64)
    cache = torch.zeros(pages, kv_heads, 64, 132, dtype=torch.uint8, device=device)
    slots = torch.arange(length, dtype=torch.int64, device=device)
    gemmill.kv_compress(cache, *(normal(length, kv_heads, 128) for _ in range(2)), slots, seed=7)
    table, q = torch.arange(pages, dtype=torch.int32, device=device)[None], normal(1, rows, heads, 128)

    def attended(begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([prefix + end], dtype=torch.int32, device=device)
        return gemmill.kv_decode_attention(q[:, begin:end], cache, table, lengths, seed=7)

    with gemmill.batch_invariant():
        whole, whole_lse = attended(0, rows)
        assert bool(whole.isfinite().all())
        for i, count in enumerate(chunks):
            begin = sum(chunks[:i])
            out, lse = attended(begin, begin + count)
            assert torch.equal(out, whole[:, begin : begin + count]) and torch.equal(
                lse, whole_lse[..., begin : begin + count]
            )
