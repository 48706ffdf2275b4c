"""The arguments of kernels for an op's call, as kernels/kv_cache/binding.cpp fills them: structs read from their header."""

import ctypes
from typing import Any

from torch import Tensor

from compile.binding.structs import struct_of
from gemmill.families.kv_cache.config import HALF_WAVES
from gemmill.families.kv_cache.packed import CACHE_FORMATS, KEY_FORMATS, VALUE_FORMATS

Launch = struct_of("core/abi.h", "gemmill_launch")
_Hadamard, _Compress, _Decompress, _Attention = (
    struct_of("kv_cache/abi.h", f"gemmill_{name}_args")
    for name in ("hadamard", "kv_compress", "kv_decompress", "kv_attention")
)
_Vectors, _Scores, _Packed = (
    struct_of("kv_cache/abi.h", f"gemmill_kv_{name}_args") for name in ("vectors", "scores", "packed_attention")
)


_Latent = struct_of("kv_cache/abi.h", "gemmill_kv_latent_attention_args")


def _filled(struct: type[ctypes.Structure], **given: Any) -> ctypes.Structure:
    of = dict(struct._fields_)
    assert set(of) == set(given), set(of) ^ set(given)
    told = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in given.items()}
    return struct(**told)


def arguments_of(given: dict[str, Any]) -> ctypes.Structure:
    """Of a call's arguments by name."""
    if "packed" in given:
        return _vectors(**given)
    if "scores" in given:
        return _scores(**given)
    if "keys" in given and "q" in given:
        return _packed_attention(**given)
    if "x" in given:
        return _hadamard(**given)
    if "q" in given and given["cache"].dim() == 3:
        return _latent_attention(**given)
    if "q" in given:
        return _attention(**given)
    return _compress(**given) if next(iter(given)) == "cache" else _decompress(**given)


def _hadamard(out: Tensor, x: Tensor, scale: float) -> ctypes.Structure:
    strides = {"out_stride": out.stride(0), "x_stride": x.stride(0)}
    return _filled(_Hadamard, out=out, x=x, rows=x.shape[0], scale=scale, **strides)


def _compress(
    cache: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor, format: str, seed: int, **rotated: bool
) -> ctypes.Structure:
    flags = {"unbiased": int("eden" in format)} | {name: int(value) for name, value in rotated.items()}
    strides = {
        "key_token_stride": keys.stride(0),
        "key_head_stride": keys.stride(1),
        "value_token_stride": values.stride(0),
        "value_head_stride": values.stride(1),
    }
    return _filled(_Compress, **flags, **strides, **_of_tokens(cache, keys, values, slot_mapping, seed))


def _decompress(
    keys: Tensor, values: Tensor, cache: Tensor, slot_mapping: Tensor, format: str, seed: int
) -> ctypes.Structure:
    strides = {"key_stride": keys.stride(1), "value_stride": values.stride(1)}
    return _filled(_Decompress, **strides, **_of_tokens(cache, keys, values, slot_mapping, seed))


def _of_tokens(cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor, seed: int) -> dict[str, Any]:
    tokens, kv_heads, _ = keys.shape
    return {
        "cache": cache,
        "keys": keys,
        "values": values,
        "slots": slots,
        "tokens": tokens,
        "seed": seed,
        "kv_heads": kv_heads,
        "pages": cache.shape[0],
        "page_size": cache.shape[2],
        "page_stride": cache.stride(0),
    }


def _attention(
    q: Tensor, cache: Tensor, block_table: Tensor, seq_lens: Tensor, format: str, **others: Any
) -> ctypes.Structure:
    batch, rows, heads, _ = q.shape
    return _filled(
        _Attention,
        half_waves=HALF_WAVES[0],
        slices=0,
        q=q,
        cache=cache,
        block_table=block_table,
        seq_lens=seq_lens,
        **(others | {"causal": int(others["causal"])}),
        batch=batch,
        rows=rows,
        heads=heads,
        kv_heads=cache.shape[1],
        pages=cache.shape[0],
        page_size=cache.shape[2],
        out_stride=others["out"].stride(2),
        page_stride=cache.stride(0),
        q_batch_stride=q.stride(0),
        q_row_stride=q.stride(1),
        q_head_stride=q.stride(2),
        table_pages=block_table.shape[1],
        table_stride=block_table.stride(0),
    )


def _latent_attention(
    q: Tensor, cache: Tensor, block_table: Tensor, seq_lens: Tensor, format: str, **others: Any
) -> ctypes.Structure:
    return _filled(
        _Latent,
        half_waves=HALF_WAVES[0],
        slices=0,
        cache=cache,
        block_table=block_table,
        seq_lens=seq_lens,
        **(others | {name: int(others[name]) for name in ("causal", "rotated_out")}),
        pages=cache.shape[0],
        page_size=cache.shape[1],
        out_stride=others["out"].stride(2),
        page_stride=cache.stride(0),
        table_pages=block_table.shape[1],
        table_stride=block_table.stride(0),
        **_of_queries(q),
    )


def _vectors(
    packed: Tensor,
    slot_mapping: Tensor | None,
    format: str,
    seed: int,
    rotated: bool = False,
    scales: Tensor | None = None,
    **sides: Tensor,
) -> ctypes.Structure:
    ((name, vectors),) = sides.items()
    formats = KEY_FORMATS if name == "keys" else VALUE_FORMATS
    return _filled(
        _Vectors,
        packed=packed,
        vectors=vectors,
        slots=slot_mapping,
        tokens=vectors.shape[0],
        heads=vectors.shape[1],
        slot_count=packed.shape[0],
        packed_slot_stride=packed.stride(0),
        packed_head_stride=packed.stride(1),
        token_stride=vectors.stride(0),
        head_stride=vectors.stride(1),
        seed=-1 if rotated else seed,
        format=list(formats).index(format),
        of_values=int(name == "values"),
        scales=scales,
    )


def _strides(name: str, x: Tensor) -> dict[str, int]:
    return {f"{name}_{what}_stride": x.stride(i) for i, what in enumerate(("page", "token", "head"))}


def _of_queries(q: Tensor) -> dict[str, Any]:
    strides = {f"q_{what}_stride": q.stride(i) for i, what in enumerate(("batch", "row", "head"))}
    return {"q": q, "batch": q.shape[0], "rows": q.shape[1], "heads": q.shape[2]} | strides


def _scores(
    scores: Tensor, q: Tensor, keys: Tensor, format: str, seed: int, key_scales: Tensor | None
) -> ctypes.Structure:
    sizes = {"kv_heads": keys.shape[2], "length": keys.shape[1], "key_format": list(KEY_FORMATS).index(format)}
    sizes |= {"key_scales": key_scales, "reserved": 0}
    return _filled(_Scores, scores=scores, keys=keys, seed=seed, **sizes, **_strides("key", keys), **_of_queries(q))


def _packed_attention(
    q: Tensor, keys: Tensor, values: Tensor, block_table: Tensor | None, format: str, **others: Any
) -> ctypes.Structure:
    key_format, value_format = divmod(CACHE_FORMATS.index(format), len(VALUE_FORMATS))
    return _filled(
        _Packed,
        half_waves=HALF_WAVES[0],
        slices=0,
        keys=keys,
        values=values,
        block_table=block_table,
        key_format=key_format,
        value_format=value_format,
        **(others | {"causal": int(others["causal"])}),
        kv_heads=keys.shape[2],
        pages=keys.shape[0],
        page_size=keys.shape[1],
        out_stride=others["out"].stride(2),
        table_pages=0 if block_table is None else block_table.shape[1],
        table_stride=0 if block_table is None else block_table.stride(0),
        **_strides("key", keys),
        **_strides("value", values),
        **_of_queries(q),
    )
