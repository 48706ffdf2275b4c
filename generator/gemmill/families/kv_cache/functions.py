"""The compressed cache's ops as functions that allocate what they return. Each raises RuntimeError with one sentence where its
arguments do not fit; arithmetic is that of gemmill.families.kv_cache.reference."""

import torch

__all__ = ["hadamard_transform", "kv_compress", "kv_decode_attention", "kv_decompress"]

_ops = torch.ops.gemmill


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """scale H x for each row of x [..., columns] (bf16 or f16; 64, 96, 128, 192 or 256 columns).

    H is Sylvester's matrix of powers of two; of 96 and 192, Paley's of 12 times Sylvester's."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _ops.hadamard_transform.default(out, x, scale)
    return out


def kv_compress(
    cache: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
    format: str = "k_eden4_v_eden4",
    seed: int = 0,
) -> None:
    """Store keys and values [tokens, heads, head dim] (bf16 or f16) of new tokens in a cache, token t at slot_mapping[t].

    cache is u8 [pages, heads, page, bytes], contiguous: bytes is the bits of a key and a value over 8, and 4. Head dims are 64, 96, 128, 192 and
    256; but for 128, keys and values have as many bits. Pages have
    16, 32, 64 or 128 tokens. slot_mapping is int64 [tokens], page times page size plus place; what the cache has not is not
    stored. No two tokens have one slot. `seed` is the rotation's."""
    _ops.kv_compress.default(cache, keys, values, slot_mapping, format, seed)


def kv_decompress(
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_dim: int,
    format: str = "k_eden4_v_eden4",
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored keys and values of slots, each [tokens, heads, head dim] in `dtype` (bf16 or f16), rotated back.

    cache, slot_mapping int64 [tokens], format and seed are as in kv_compress; a slot that the cache has not gives zeros. Formats
    are those that kv_decode_attention reads."""
    shape = (slot_mapping.numel(), cache.shape[1], head_dim)
    keys, values = (torch.empty(shape, dtype=dtype, device=cache.device) for _ in range(2))
    _ops.kv_decompress.default(keys, values, cache, slot_mapping, format, seed)
    return keys, values


def kv_decode_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    format: str = "k_eden4_v_eden4",
    *,
    scale: float | None = None,
    seed: int = 0,
    causal: bool = True,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [batch, rows, heads, head dim] (bf16 or f16) over a cache: out of q's shape, and lse f32 [batch, heads, rows].

    Rows are the last tokens of their sequence. cache is kv_compress's. block_table is int32 [batch, pages of the longest],
    seq_lens int32 [batch]; pages and lengths that the cache has not are replaced by the nearest that it has. scale is
    1 / sqrt(head dim) if None. A window or softcap of 0 is none. With a softcap, scores are softcap
    times tanh(score / softcap). sinks are f32 logits [heads]. By a seed of -1, q comes rotated and out stays so."""
    batch, rows, heads, head_dim = q.shape
    out = q.new_empty(q.shape)
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    factor = head_dim**-0.5 if scale is None else scale
    _ops.kv_decode_attention.default(
        out, q, cache, block_table, seq_lens, format, factor, seed, causal, window, sinks, lse, softcap
    )
    return out, lse
