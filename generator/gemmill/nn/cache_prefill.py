"""The attention of a compressed cache's prefill, by restored keys and values, and the heads that it restores at a time."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor, float, bool], Tensor]
"""Attention by queries, keys, values, a scale, and whether it is causal.

Queries are [rows, heads, head_dim], the last tokens of a sequence; heads may be some of a larger tensor's. Keys and values are
[tokens, KV heads, head_dim].
"""
LEAST_ROWS, LEAST_BYTES = 1 << 15, 1 << 26
"""Rows times query heads, and bytes of restored vectors, of a pass of prefill. Two tiles of 128 rows for each multiprocessor even
out causal rows of different lengths. Fewer bytes are not worth a launch."""


def heads_of_pass(kv_heads: int, rows: int, vector_bytes: int) -> int:
    """KV heads that a pass of prefill restores: the smallest divisor of `kv_heads` that makes a pass large enough.

    `rows` and `vector_bytes` are those of a KV head.
    """
    enough = (
        n
        for n in range(1, kv_heads)
        if kv_heads % n == 0 and n * rows >= LEAST_ROWS and n * vector_bytes >= LEAST_BYTES
    )
    return next(enough, kv_heads)


def attend_by_torch(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
    """An `Attention` by torch's scaled_dot_product_attention."""
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes 2 s

    rows, tokens = len(q), len(keys)
    # torch's own causal mask is of the first tokens; where there are as many rows it is the same, and its kernels are faster.
    mask = causal_lower_right(rows, tokens) if causal and rows != tokens else None
    given = (x.transpose(0, 1)[None] for x in (q, keys, values))
    options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != keys.shape[1]}
    out = scaled_dot_product_attention(*given, attn_mask=mask, is_causal=causal and rows == tokens, **options)
    return out[0].transpose(0, 1)
