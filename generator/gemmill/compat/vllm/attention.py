"""vLLM's TurboQuant backend of attention, with gemmill's kernels: they store new tokens in vLLM's slots and decode over them.

Only vLLM imports it, for a cache of `--kv-cache-dtype turboquant_...`. The classes derive from vLLM's. The rest stays
vLLM's: prefill, and its kernels wherever gemmill refuses a layer, in one sentence.

With speculative decoding a sequence has a query row for its last token and one for each draft. The builder counts such
sequences as decodes, and their rows pass the cache together. vLLM's own builder leaves them to its prefilling, whose calls
a CUDA graph of a uniform batch would keep with the lengths of its capture.
"""

import logging
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.turboquant_attn import (
    TurboQuantAttentionBackend,
    TurboQuantAttentionImpl,
    TurboQuantMetadataBuilder,
)

import gemmill
from gemmill.compat.linear import unusable
from gemmill.families.kv_cache.config import Slots
from gemmill.families.kv_cache.formats import preset
from gemmill.families.kv_cache.packed import name_of, preset_format, slot_sizes
from gemmill.families.kv_cache.packed_ops import MOST_SLOT_ROWS
from gemmill.runtime import ops, served

_DRAFT_MODEL = "draft_model."
"""How vLLM's names of a draft model's layers begin."""


class GemmillTurboQuantBackend(TurboQuantAttentionBackend):
    """vLLM's backend with gemmill's kernels."""

    @staticmethod
    def get_impl_cls() -> type[TurboQuantAttentionImpl]:
        """The class that computes."""
        return GemmillTurboQuantImpl

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        """The class that separates decodes from prefills."""
        return GemmillTurboQuantBuilder


@dataclass(frozen=True)
class Rows:
    """The query rows of a batch of decodes, where a sequence has several. A sequence's rows are its last tokens."""

    most: int
    """Rows of the longest query."""
    taken: Tensor | None = None
    """Of a ragged batch, int64 [sequences, most] on the device: the token of each row. Rows that a sequence has not come first, and
    repeat a token. None: each sequence has `most` rows."""
    given: Tensor | None = None
    """Of a ragged batch, int64 [tokens]: the place of a token among all rows."""

    def spread(self, x: Tensor) -> Tensor:
        """Tokens [tokens, heads, head dim] as rows [sequences, most, heads, head dim]."""
        return x.unflatten(0, (-1, self.most)) if self.taken is None else x[self.taken]

    def joined(self, x: Tensor) -> Tensor:
        """Rows [sequences, most, heads, head dim] as tokens [tokens, heads, head dim]."""
        return x.flatten(0, 1) if self.given is None else x.flatten(0, 1)[self.given]


class GemmillTurboQuantBuilder(TurboQuantMetadataBuilder):
    """vLLM's, but for drafts: a query of a token and its drafts is a decode.

    vLLM 0.33 tells the CPU one token less of a draft model's sequences than its query has, so that its prefilling of more than 128
    tokens ends the engine. For a draft model's prefills the builder takes the lengths that the device has, and waits for them.
    """

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        super()._init_reorder_batch_threshold(reorder_batch_threshold, True, supports_dcp_with_varlen)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        """vLLM's metadata, and as `rows` the query rows of its decodes; None where each has one."""
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        decodes, tokens = metadata.num_decodes, metadata.num_decode_tokens
        metadata.is_prefill = decodes < common_attn_metadata.num_reqs
        if metadata.is_prefill and any(name.startswith(_DRAFT_MODEL) for name in self.layer_names):
            metadata.seq_lens_cpu = common_attn_metadata.seq_lens.cpu()
        begins = common_attn_metadata.query_start_loc_cpu[: decodes + 1]
        metadata.rows = rows_of(begins, tokens, common_attn_metadata.seq_lens.device)
        return metadata


def rows_of(begins: Tensor, tokens: int, device: torch.device) -> Rows | None:
    """The rows of queries that begin and end at `begins` [sequences + 1], on the CPU; None where no sequence has several.

    `tokens` counts those that pad a batch too. Sequences that pad it have none.
    """
    counts = begins.diff()
    most = int(counts.max()) if len(counts) else 0
    if most <= 1:
        return None
    begins, ends = begins[:-1].long(), begins[1:].long()
    if len(counts) * most == tokens and bool(((counts == most) | (begins == ends[-1])).all()):
        return Rows(most)
    steps = torch.arange(most, dtype=torch.int64, device="cpu")
    taken = (ends[:, None] - most + steps).maximum(begins[:, None]).clamp(max=max(tokens - 1, 0))
    given = torch.zeros(tokens, dtype=torch.int64, device="cpu")
    places = (torch.arange(len(counts), dtype=torch.int64, device="cpu") + 1) * most - ends
    given[: int(ends[-1])] = torch.arange(int(ends[-1]), dtype=torch.int64, device="cpu") + places.repeat_interleave(
        counts.long()
    )
    return Rows(most, *(x.to(device, non_blocking=True) for x in (taken, given)))


class GemmillTurboQuantImpl(TurboQuantAttentionImpl):
    """Stores and decodes by gemmill, if its build has variants for the layer and its calls pass."""

    _failed = ""
    _rows: Rows | None = None

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

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor | None = None,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """vLLM's, which passes decodes on without the number of rows of each."""
        self._rows = getattr(attn_metadata, "rows", None)
        result: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        )
        return result

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
        """Decodes [tokens, heads, head dim], sequence by sequence. Rotation and centroids are those of the format."""
        rows, of_vllm = self._rows, (Pi, centroids, PiT, layer)
        if self._is_served(query.dtype, kv_cache):
            try:
                return self._decoded(query, kv_cache, attn_metadata)
            except Exception as error:  # the same
                self._fails(error)
        if rows is None:
            own: Tensor = super()._decode_attention(query, kv_cache, attn_metadata, *of_vllm)
            return own
        q, found, lengths = rows.spread(query), [], attn_metadata.seq_lens
        for row in range(rows.most):  # vLLM's kernel takes one of each sequence
            of_row = copy(attn_metadata)
            of_row.seq_lens = (lengths - (rows.most - 1 - row)).clamp(min=0)
            out = super()._decode_attention(q[:, row].contiguous(), kv_cache, of_row, *of_vllm)
            found.append(out.clone())  # the next call has the same memory
        return rows.joined(torch.stack(found, dim=1))

    def _decoded(self, query: Tensor, kv_cache: Tensor, attn_metadata: Any) -> Tensor:
        keys, values = gemmill.vllm_cache(kv_cache, self.kv_cache_dtype, self.head_size)
        table, lengths, rows = attn_metadata.block_table, attn_metadata.seq_lens, self._rows
        told = {"format": self.kv_cache_dtype, "scale": self.scale}
        if rows is None:
            return gemmill.kv_attention(query[:, None], keys, values, lengths, table, **told)[0][:, 0]
        q, at_once, found = rows.spread(query), self._rows_at_once(query.dtype, kv_cache) or rows.most, []
        for begin in range(0, rows.most, at_once):
            end = min(begin + at_once, rows.most)
            own = lengths - (rows.most - end) if end < rows.most else lengths
            found.append(gemmill.kv_attention(q[:, begin:end], keys, values, own, table, **told)[0])
        return rows.joined(torch.cat(found, dim=1) if len(found) > 1 else found[0])

    def _rows_at_once(self, dtype: torch.dtype, kv_cache: Tensor) -> int:
        """The most query rows that a fast kernel takes; 0 where the kernel takes any number."""
        heads = self.num_heads, self.num_kv_heads, self.head_size
        return _rows_of_call(self.kv_cache_dtype, heads, dtype, *kv_cache.shape[1::2], ops.active().build_id)

    def _fails(self, error: Exception) -> None:
        self._failed = f"a call failed ({' '.join(str(error).split())})"
        _told(self._failed)

    def _is_served(self, dtype: torch.dtype, kv_cache: Tensor) -> bool:
        """Whether gemmill has variants for the layer. Logs once why not. Raises nothing."""
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
    served.took(served.ServedLayers(**kind, variants=f"build {build_id} has {names}"))
    return None


@cache
def _rows_of_call(
    name: str, heads: tuple[int, int, int], dtype: torch.dtype, page: int, slot: int, build_id: str
) -> int:
    """The most query rows for which a build's kernel of the format itself serves a layer; 0 where it has none of it."""
    query_heads, kv_heads, head_dim = heads
    key, value, _ = slot_sizes(preset(name), head_dim)
    *_, attention = _calls(name, query_heads, kv_heads, head_dim, dtype, page, key, value, slot)
    entry = ops.explain(*attention).entry
    if entry is None or entry.config.operands.slots is Slots.ANY:
        return 0
    return max(MOST_SLOT_ROWS * kv_heads // query_heads, 1)


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
