"""The compressed cache's ops as functions that allocate their results.

Each raises RuntimeError with one sentence where its arguments do not fit. The arithmetic is that of
gemmill.families.kv_cache.reference.
"""

import torch

from gemmill.families.kv_cache.formats import HEAD_DIMS, preset
from gemmill.families.kv_cache.latent import E4M3_TOKEN_BYTES, LATENT_BYTES, LATENT_DIM, ROTARY_AT, TOKEN_BYTES
from gemmill.families.kv_cache.packed import preset_format, slot_sizes
from gemmill.family import any_of
from gemmill.runtime.sizes import size, sizes

__all__ = [
    "check_page_table",
    "hadamard_transform",
    "kv_attention",
    "kv_attention_scores",
    "kv_compress",
    "kv_compress_keys",
    "kv_compress_values",
    "kv_decode_attention",
    "kv_decompress",
    "kv_decompress_keys",
    "kv_decompress_values",
    "kv_latent_attention",
    "latent_cache",
    "vllm_cache",
]

_ops = torch.ops.gemmill


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return scale H x [..., columns] for each row of x [..., columns], in x's dtype.

    x is bf16 or f16. columns are 64, 96, 128, 192, 256 or 512. H is Sylvester's matrix for powers of two. For 96 and 192 it
    is Paley's of 12 times Sylvester's.
    """
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
    *,
    rotated_keys: bool = False,
    rotated_values: bool = False,
) -> None:
    """Store keys and values of new tokens in a cache, token t at slot_mapping[t].

    `keys` and `values` are [tokens, heads, head dim], bf16 or f16. Head dims are 64, 96, 128, 192, 256 and 512. Values
    have as many elements as keys, or 128 where keys have 192. Keys and values have different numbers of bits with head
    dim 128 alone.

    `cache` is u8 [pages, heads, page, bytes], each page contiguous. bytes counts a key's and a value's bits over 8,
    plus 4 for their norms. Pages have 16, 32, 64 or 128 tokens.

    `slot_mapping` is int64 [tokens]: page times page size plus place. The op does not store a token whose slot the
    cache does not have. No two tokens may have one slot. `seed` is the rotation's.

    `rotated_keys` and `rotated_values`: keys or values come rotated, and the op stores them as they are: see
    `gemmill.quantize.fold_rotation`.
    """
    _ops.kv_compress.default(cache, keys, values, slot_mapping, format, seed, rotated_keys, rotated_values)


def kv_decompress(
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_dim: int,
    format: str = "k_eden4_v_eden4",
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    *,
    value_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return stored keys and values of slots, each [tokens, heads, head dim] in `dtype` (bf16 or f16), rotated back.

    Values have `value_dim` elements, where keys have `head_dim`; None stands for as many.

    `cache`, `slot_mapping` (int64 [tokens]), `format` and `seed` are as in kv_compress. A slot that the cache does not
    have gives zeros. Formats are those that kv_decode_attention reads.
    """
    dims = head_dim, head_dim if value_dim is None else value_dim
    keys, values = (_plain("kv_decompress", cache, elements, slot_mapping, dtype) for elements in dims)
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
    rotated_out: bool = False,
    value_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over a cache: return out [batch, rows, heads, value dim] in q's dtype, and lse f32 [batch, heads, rows].

    `q` is [batch, rows, heads, head dim], bf16 or f16. Rows are the last tokens of their sequence. `cache` is
    kv_compress's. `block_table` is int32 [batch, pages of the longest], `seq_lens` int32 [batch]. The nearest page or
    length of the cache replaces one that it does not have.

    A `scale` of None stands for 1 / sqrt(head dim), a `value_dim` of None for as many elements of a value as of a key. A
    window or softcap of 0 is none. With a softcap, scores are softcap times tanh(score / softcap). `sinks` are f32
    logits [heads].

    With a seed of -1, q comes rotated and out stays rotated. With `rotated_out` only out stays rotated: see
    `gemmill.quantize.fold_rotation`.
    """
    batch, rows, heads, head_dim = sizes(q, 4)
    out = q.new_empty((batch, rows, heads, head_dim if value_dim is None else _known("kv_decode_attention", value_dim)))
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    factor = max(head_dim, 1) ** -0.5 if scale is None else scale
    _ops.kv_decode_attention.default(
        out, q, cache, block_table, seq_lens, format, factor, seed, causal, window, sinks, lse, softcap, rotated_out
    )
    return out, lse


def kv_compress_keys(
    packed: torch.Tensor,
    keys: torch.Tensor,
    slot_mapping: torch.Tensor | None = None,
    format: str = "eden4",
    seed: int = 0,
    *,
    rotated: bool = False,
    scales: torch.Tensor | None = None,
) -> None:
    """Pack keys [tokens, heads, head dim] (bf16 or f16), token t at slot_mapping[t], or at t without a mapping.

    `packed` is u8 [slots, heads, bytes of a key]; its vectors may lie apart. `slot_mapping` is int64 [tokens]. The op
    does not store a token without a slot.

    Formats are eden, turboquant_mse and turboquant_prod with 2, 3 or 4 bits, unit_centroids with 3 or 4, e2m1 and e4m3
    (docs/kv_cache.md). `rotated` says that keys come rotated. Formats that rotate and have no signs take such keys.

    `scales` are f32 [heads], positive, of e4m3 alone: codes are those of keys over their head's scale. None is ones.
    """
    _ops.kv_compress_keys.default(packed, keys, slot_mapping, format, seed, rotated, scales)


def kv_compress_values(
    packed: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor | None = None,
    format: str = "eden4",
    seed: int = 0,
    *,
    rotated: bool = False,
    scales: torch.Tensor | None = None,
) -> None:
    """Pack values [tokens, heads, head dim] as kv_compress_keys packs keys.

    Formats are eden, turboquant_mse and turboquant_prod with 2, 3 or 4 bits, uniform with 3 or 4, e2m1 and e4m3."""
    _ops.kv_compress_values.default(packed, values, slot_mapping, format, seed, rotated, scales)


def kv_decompress_keys(
    packed: torch.Tensor,
    head_dim: int,
    slot_mapping: torch.Tensor | None = None,
    format: str = "eden4",
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return packed keys of slots, [tokens, heads, head dim] in `dtype` (bf16 or f16), rotated back.

    `packed` is u8 [slots, heads, bytes of a key]. Without a `slot_mapping` (int64 [tokens]) all slots are read. A slot
    that `packed` does not have gives zeros. `scales` are those that e4m3 keys were packed with.
    """
    keys = _plain("kv_decompress_keys", packed, head_dim, slot_mapping, dtype)
    _ops.kv_decompress_keys.default(keys, packed, slot_mapping, format, seed, scales)
    return keys


def kv_decompress_values(
    packed: torch.Tensor,
    head_dim: int,
    slot_mapping: torch.Tensor | None = None,
    format: str = "eden4",
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return packed values of slots, [tokens, heads, head dim], as kv_decompress_keys returns keys."""
    values = _plain("kv_decompress_values", packed, head_dim, slot_mapping, dtype)
    _ops.kv_decompress_values.default(values, packed, slot_mapping, format, seed, scales)
    return values


def _known(op: str, elements: int) -> int:
    """Elements of vectors that there are. Raises RuntimeError for others, of which there may be no memory."""
    if elements not in HEAD_DIMS:
        raise RuntimeError(f"{op}: vectors have {elements} elements, expected {any_of(list(map(str, HEAD_DIMS)))}")
    return elements


def _plain(
    op: str, packed: torch.Tensor, head_dim: int, slot_mapping: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Memory for vectors of slots. Raises RuntimeError for sizes that vectors do not have."""
    head_dim = _known(op, head_dim)
    tokens = size(packed, 0) if slot_mapping is None else slot_mapping.numel()
    return packed.new_empty((tokens, size(packed, 1), head_dim), dtype=dtype)


def kv_attention_scores(
    q: torch.Tensor, keys: torch.Tensor, format: str = "eden4", seed: int = 0, key_scales: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the inner products of queries and packed keys, f32 [batch, heads, rows, length].

    `q` is [batch, rows, heads, head dim], bf16 or f16. `keys` are u8 [batch, length, KV heads, bytes of a key]. There
    is no scale and no mask: the function is for callers with a softmax of their own. `key_scales` are those that e4m3
    keys were packed with.
    """
    batch, rows, heads = sizes(q, 3)
    scores = q.new_empty((batch, heads, rows, size(keys, 1)), dtype=torch.float32)
    _ops.kv_attention_scores.default(scores, q, keys, format, seed, key_scales)
    return scores


def kv_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor | None = None,
    format: str = "k_eden4_v_eden4",
    *,
    scale: float | None = None,
    seed: int = 0,
    causal: bool = True,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    rotated_out: bool = False,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over packed keys and values of any format: return out [batch, rows, heads, head dim] and lse f32 [batch,
    heads, rows].

    `q` is [batch, rows, heads, head dim], bf16 or f16. `keys` and `values` are u8 [pages, page, KV heads, bytes], pages
    of any size. Without a `block_table` sequence b has page b alone.

    `format` is k_K_v_V, where K is a format of kv_compress_keys and V one of kv_compress_values. It may also be a
    preset of vLLM, such as turboquant_4bit_nc, or fp8 for k_e4m3_v_e4m3. Raises ValueError for another preset.

    `key_scales` and `value_scales` are f32 [KV heads], of e4m3 alone: the factors of stored elements. None is ones. The
    rest is as in kv_decode_attention.
    """
    batch, rows, heads, head_dim = sizes(q, 4)
    out = q.new_empty(q.shape)
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    factor = max(head_dim, 1) ** -0.5 if scale is None else scale
    told = format if format.startswith("k_") else preset_format(format)
    _ops.kv_attention.default(
        out,
        q,
        keys,
        values,
        block_table,
        seq_lens,
        told,
        factor,
        seed,
        causal,
        window,
        sinks,
        lse,
        softcap,
        rotated_out,
        key_scales,
        value_scales,
    )
    return out, lse


def kv_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    format: str = "eden4",
    *,
    scale: float,
    seed: int = 0,
    causal: bool = True,
    rotated_out: bool = False,
    key_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over a cache of latents (MLA): return out [batch, rows, heads, 512] in q's dtype, and lse f32 [batch, heads,
    rows].

    `q` is [batch, rows, heads, 576], bf16 or f16: 512 elements that meet the latent, then 64 of the rotary part. `cache`
    is u8 [pages, page, 400], as `latent_cache` cuts it: pages of 16, 32, 64 or 128 tokens, whose rotary parts have q's
    dtype; or [pages, page, 336] with rotary parts in e4m3, whose elements `key_scales`, f32 [1], multiplies (None is one). Keys of all heads are the latent and the rotary part, values the latent. `format` is eden4 or turboquant_mse4.
    `scale` is the model's, most often 1 / sqrt(192). The rest is as in kv_decode_attention.
    """
    batch, rows, heads, _ = sizes(q, 4)
    out = q.new_empty((batch, rows, heads, LATENT_DIM))
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    _ops.kv_latent_attention.default(
        out, q, cache, block_table, seq_lens, format, scale, seed, causal, lse, rotated_out, key_scales
    )
    return out, lse


def latent_cache(cache: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed latents u8 [slots, 1, 258] of a cache of latents and its rotary parts [slots, 64] in `dtype` (bf16 or
    f16), which share its memory. Of a cache of 336 bytes a token rotary parts are packed keys in e4m3, u8 [slots, 1, 64].

    `cache` is u8 [pages, page, 400 or 336] without gaps. Store latents [tokens, 1, 512] by kv_compress_keys, and rotary parts by
    an assignment to slots; in e4m3 by kv_compress_keys, with a scale. Raises ValueError for another cache or dtype.
    """
    if (
        cache.dim() != 3
        or cache.dtype is not torch.uint8
        or cache.shape[-1] not in (TOKEN_BYTES, E4M3_TOKEN_BYTES)
        or not cache.is_contiguous()
    ):
        raise ValueError(
            f"A cache {cache.dtype} {list(cache.shape)} was given; latents lie in contiguous torch.uint8 [pages, page, "
            f"{TOKEN_BYTES}], or {E4M3_TOKEN_BYTES} with rotary parts in e4m3: allocate it so."
        )
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"Rotary parts in {dtype} were asked for; they are bfloat16 or float16: choose the queries' type."
        )
    slots = cache.flatten(0, 1)
    rotary = slots[:, None, ROTARY_AT:] if cache.shape[-1] == E4M3_TOKEN_BYTES else slots[:, ROTARY_AT:].view(dtype)
    return slots[:, None, :LATENT_BYTES], rotary


def vllm_cache(cache: torch.Tensor, name: str, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and the values of a cache of vLLM as tensors of packed vectors that share its memory.

    `cache` is u8 [pages, page, KV heads, slot]. `name` is its kv-cache-dtype, such as turboquant_4bit_nc. Raises
    ValueError for another name or size of a slot.
    """
    key, value, slot = slot_sizes(preset(name), head_dim)
    preset_format(name)
    if cache.dim() != 4 or cache.dtype is not torch.uint8 or cache.shape[-1] != slot:
        raise ValueError(
            f"A cache {cache.dtype} {list(cache.shape)} was given; {name} with head dim {head_dim} is torch.uint8 [pages, page, "
            f"KV heads, {slot}]: pass the tensor that vLLM allocated."
        )
    return cache[..., :key], cache[..., key : key + value]


def check_page_table(block_table: torch.Tensor, seq_lens: torch.Tensor, pages: int, page: int) -> None:
    """Raise ValueError where a table names pages that a cache of `pages` has not, or where lengths go beyond the table.

    `block_table` is [batch, pages of the longest], `seq_lens` [batch], both of integers. `page` is the tokens of a
    page. The ops check neither, and take the nearest page or length that there is. This function waits for the device
    once.
    """
    table, lengths = block_table.cpu(), seq_lens.cpu()
    reach = table.shape[1] * page
    for sequence, length in enumerate(lengths.tolist()):
        if not 0 <= length <= reach:
            raise ValueError(
                f"Sequence {sequence} is told to have {length} tokens; its row of the page table has {table.shape[1]} pages of {page}, room "
                f"for 0 to {reach}: widen block_table, or correct seq_lens."
            )
        used = table[sequence, : -(-length // page)]
        outside = ((used < 0) | (used >= pages)).nonzero().flatten().tolist()
        if outside:
            raise ValueError(
                f"Page {outside[0]} of sequence {sequence} is {int(used[outside[0]])}; the cache has pages 0 to {pages - 1}: correct "
                "block_table, of which so many entries are read as the sequence's length says."
            )
