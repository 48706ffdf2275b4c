"""Peak memory of a compressed cache that is filled and attended over, next to that of a bf16 cache that is only filled."""

from collections.abc import Callable

import pytest
import torch

import gemmill
from gemmill.nn import CompressedKVCache

LAYERS, HEADS, KV_HEADS, HEAD_DIM, CHUNK = 4, 32, 8, 128, 128


def peak_of(run: Callable[[], list[torch.Tensor]], device: torch.device) -> int:
    """Bytes that a run needs at most beyond those in use before. On a CPU, those of the tensors that it returns: its caches."""
    if device.type == "cpu":
        return sum(x.nbytes for x in run())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    assert most >= sum(x.nbytes for x in kept)
    return most


@pytest.mark.parametrize(("bits", "least"), [(4, 3.7), (3, 4.9), (2, 7.0)])
def test_peak_memory(bits: int, least: float, device: torch.device) -> None:
    sequences, length = (4, 16384) if device.type == "cuda" else (1, CHUNK)
    q = torch.randn(sequences, 1, HEADS, HEAD_DIM, device=device).bfloat16()

    def chunk(begin: int, count: int = 2) -> torch.Tensor:
        random = torch.Generator(device).manual_seed(begin)
        return torch.randn(count, CHUNK, KV_HEADS, HEAD_DIM, generator=random, device=device).bfloat16()

    def compressed() -> list[torch.Tensor]:
        sizes = {"pages": sequences * length // 64, "kv_heads": KV_HEADS, "layers": LAYERS}
        cache = CompressedKVCache(**sizes, format=f"k_eden{bits}_v_eden{bits}", device=device)
        numbers = [cache.allocate() for _ in range(sequences)]
        for begin in range(0, length, CHUNK):
            for number in numbers:
                step = cache.append({number: CHUNK})
                for layer in range(LAYERS):
                    cache.store(step, *chunk(begin), layer=layer)
        step = cache.append(dict.fromkeys(numbers, 0))
        for layer in range(LAYERS):
            told = cache.data[layer], step.block_table, step.seq_lens, cache.format
            out, _ = gemmill.kv_decode_attention(q, *told, seed=cache.spec.seed)
            assert bool(out.isfinite().all())
        return [cache.data]

    def in_bf16() -> list[torch.Tensor]:
        cache = torch.empty(LAYERS, 2, sequences, length, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
        for begin in range(0, length, CHUNK):
            cache[:, :, :, begin : begin + CHUNK] = chunk(begin)[None, :, None]
        return [cache]

    ratio = peak_of(in_bf16, device) / peak_of(compressed, device)
    print(f"\n{bits} bits: bf16 takes {ratio:.2f} times the memory")
    assert ratio >= least
