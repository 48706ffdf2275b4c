"""vLLM's TurboQuant backend of attention, with gemmill's kernels: they store new tokens in vLLM's slots and decode over them.

Imported by vLLM alone, where a cache of `--kv-cache-dtype turboquant_...` is asked for. Both classes derive from vLLM's. What is
not overridden stays vLLM's: metadata, prefilling, and its kernels wherever gemmill refuses a layer, in one sentence.
"""

import logging
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend, TurboQuantAttentionImpl

import gemmill
from gemmill.compat.linear import unusable
from gemmill.families.kv_cache.formats import preset
from gemmill.families.kv_cache.packed import name_of, preset_format, slot_sizes
from gemmill.runtime import ops, served


class GemmillTurboQuantBackend(TurboQuantAttentionBackend):
    """vLLM's, but for who computes."""

    @staticmethod
    def get_impl_cls() -> type[TurboQuantAttentionImpl]:
        """Who computes."""
        return GemmillTurboQuantImpl


class GemmillTurboQuantImpl(TurboQuantAttentionImpl):
    """Stores and decodes by gemmill, if its build has variants for the layer and its calls pass."""

    _failed = ""

    def _store_kv(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor, layer: Any) -> None:
        """Tokens [N, heads, head dim] to slots of kv_cache, u8 [blocks, tokens, heads, slot]; a slot of -1 stores nothing."""
        if self._is_served(key.dtype, kv_cache):
            try:
                self._store(key, value, kv_cache, slot_mapping)
                return
            except Exception as error:  # whatever is wrong: vLLM's kernels store the same bytes
                self._fails(error)
        super()._store_kv(key, value, kv_cache, slot_mapping, layer)

    def _store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        keys, values = (
            x.view(-1, *x.shape[2:]) for x in gemmill.vllm_cache(kv_cache, self.kv_cache_dtype, self.head_size)
        )
        key_format, value_format = _formats(self.kv_cache_dtype)
        slots = slot_mapping.long()
        gemmill.kv_compress_keys(keys, key, slots, key_format)
        gemmill.kv_compress_values(values, value, slots, value_format)

    def _decode_attention(
        self,
        query: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        Pi: Tensor,
        centroids: Tensor,
        PiT: Tensor | None = None,
        layer: Any = None,
    ) -> Tensor:
        """One row of queries [sequences, heads, head dim] a sequence. Rotation and centroids are those of the format."""
        if self._is_served(query.dtype, kv_cache):
            try:
                return self._decoded(query, kv_cache, attn_metadata)
            except Exception as error:  # the same
                self._fails(error)
        own: Tensor = super()._decode_attention(query, kv_cache, attn_metadata, Pi, centroids, PiT, layer)
        return own

    def _decoded(self, query: Tensor, kv_cache: Tensor, attn_metadata: Any) -> Tensor:
        keys, values = gemmill.vllm_cache(kv_cache, self.kv_cache_dtype, self.head_size)
        table, lengths = attn_metadata.block_table, attn_metadata.seq_lens
        told = {"format": self.kv_cache_dtype, "scale": self.scale}
        out, _ = gemmill.kv_attention(query[:, None], keys, values, lengths, table, **told)
        return out[:, 0]

    def _fails(self, error: Exception) -> None:
        self._failed = f"a call failed ({' '.join(str(error).split())})"
        _told(self._failed)

    def _is_served(self, dtype: torch.dtype, kv_cache: Tensor) -> bool:
        """Whether gemmill has variants for the layer. Tells once why not. Raises nothing."""
        if self._failed:
            return False
        _, page, _, slot = kv_cache.shape
        if kv_cache.stride(0) != page * kv_cache.stride(1) and kv_cache.shape[0] > 1:
            return _told("its pages are apart, and new tokens are stored by the number of their slot")
        if getattr(self, "_soa_store", False):
            return _told("its slots are split, as AMD's GPUs have them")
        heads = self.num_heads, self.num_kv_heads, self.head_size
        try:
            why = _refusal(self.kv_cache_dtype, heads, dtype, page, slot, ops.active().build_id)
        except Exception as error:  # whatever is wrong with a build: vLLM goes on
            why = unusable(error)
        return why is None or _told(why)


def _formats(name: str) -> tuple[str, str]:
    """The formats of keys and of values."""
    return name_of(preset(name).keys), name_of(preset(name).values)


def _told(why: str) -> bool:
    served.left("TurboQuant cache", why, level=logging.WARNING)
    return False


@cache
def _refusal(
    name: str, heads: tuple[int, int, int], dtype: torch.dtype, page: int, slot: int, build_id: str
) -> str | None:
    """The reason why a build does not serve a layer, in one sentence; None if it does."""
    query_heads, kv_heads, head_dim = heads
    if import_module("vllm.envs").VLLM_BATCH_INVARIANT:
        return "a decode step and a chunk of a prefill hold orders of their own, and VLLM_BATCH_INVARIANT is set"
    try:
        key, value, size = slot_sizes(preset(name), head_dim)
        if size != slot:
            return f"slots have {slot} bytes, {name} with head dim {head_dim} has {size}"
        chosen = [
            ops.explain(*call) for call in _calls(name, query_heads, kv_heads, head_dim, dtype, page, key, value, slot)
        ]
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
    if any(choice.entry is None for choice in chosen):
        return f"build {build_id} has no variant for {name} with head dim {head_dim}: `gemmill build` compiles more"
    names = ", ".join(choice.entry.name for choice in chosen if choice.entry is not None)
    kind = {"layer": f"cache of {name}, head dim {head_dim}", "by": "GemmillTurboQuantImpl"}
    served.took(served.Kind(**kind, variants=f"build {build_id} has {names}"))
    return None


def _calls(
    name: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, page: int, key: int, value: int, slot: int
) -> list[tuple[Any, ...]]:
    """The ops' names and their arguments, on torch's meta device: a store of each side, and an attention of one sequence."""

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    def side(size: int) -> Tensor:
        strides = page * kv_heads * slot, kv_heads * slot, slot, 1
        return torch.empty_strided((1, page, kv_heads, size), strides, dtype=torch.uint8, device="meta")

    new, q = empty(1, kv_heads, head_dim), empty(1, 1, heads, head_dim)
    slots, table, lengths = empty(1, kind=torch.int64), empty(1, 1, kind=torch.int32), empty(1, kind=torch.int32)
    key_format, value_format = _formats(name)
    return [
        ("kv_compress_keys", side(key)[0], new, slots, key_format),
        ("kv_compress_values", side(value)[0], new, slots, value_format),
        (
            "kv_attention",
            empty(*q.shape),
            q,
            side(key),
            side(value),
            table,
            lengths,
            preset_format(name),
            head_dim**-0.5,
        ),
    ]
