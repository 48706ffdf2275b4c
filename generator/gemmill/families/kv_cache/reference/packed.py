"""Packed vectors of keys and values in tensors of their own: writing, restoring, attending over them."""

import torch
from torch import Tensor

from gemmill.families.kv_cache.formats import VectorSpec
from gemmill.families.kv_cache.reference.attention import Stored
from gemmill.families.kv_cache.reference.vectors import compress, decompress, from_bytes, to_bytes


def existing(slot_mapping: Tensor | None, tokens: int, slots: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which tokens have a slot, bool [tokens], and the slots of those. Without a mapping token t has slot t."""
    places = (
        torch.arange(tokens, device=device, dtype=torch.int64) if slot_mapping is None else slot_mapping.reshape(-1)
    )
    exists = (places >= 0) & (places < slots)
    return exists, places[exists]


def over_scales(x: Tensor, scales: Tensor | None) -> Tensor:
    """Vectors [tokens, heads, head_dim] before they become codes: over the scale of their head f32 [heads], in float32;
    as they are without scales.
    """
    return x if scales is None else x.float() / scales.reshape(-1, 1)


def by_scales(x: Tensor, scales: Tensor | None, group: int = 1) -> Tensor:
    """Vectors [..., heads, head_dim] times the scale of their head in x's dtype; `group` heads in turn have one scale."""
    return x if scales is None else x * scales.reshape(-1).to(x.dtype).repeat_interleave(group)[:, None]


def written(
    packed: Tensor, x: Tensor, slot_mapping: Tensor | None, spec: VectorSpec, scales: Tensor | None = None
) -> Tensor:
    """A copy of packed vectors u8 [slots, heads, bytes], in which those of x [tokens, heads, head_dim] are in their
    slots."""
    exists, places = existing(slot_mapping, x.shape[0], packed.shape[0], x.device)
    after = packed.clone(memory_format=torch.contiguous_format)
    after[places] = to_bytes(compress(over_scales(x, scales)[exists].double(), spec), spec)
    return after


def restored(
    packed: Tensor, tokens: int, slot_mapping: Tensor | None, spec: VectorSpec, scales: Tensor | None = None
) -> Tensor:
    """Stored vectors [tokens, heads, head_dim] of slots in float64; zeros where there is no slot."""
    exists, places = existing(slot_mapping, tokens, packed.shape[0], packed.device)
    found = torch.zeros(tokens, packed.shape[1], spec.head_dim, dtype=torch.float64, device=packed.device)
    found[exists] = by_scales(decompress(from_bytes(packed[places].contiguous(), spec), spec), scales)
    return found


def sequence(
    keys: Tensor, values: Tensor, pages: Tensor, length: int, key_spec: VectorSpec, value_spec: VectorSpec
) -> Stored:
    """The first `length` tokens of the pages of one sequence; keys and values u8 [pages, page, kv_heads, bytes]."""
    tokens = torch.arange(length, device=keys.device, dtype=torch.int64)
    page, place = pages.long()[tokens // max(keys.shape[1], 1)], tokens % max(keys.shape[1], 1)
    fields = [from_bytes(x[page, place].contiguous(), spec) for x, spec in ((keys, key_spec), (values, value_spec))]
    return Stored(keys=fields[0], values=fields[1], key_spec=key_spec, value_spec=value_spec)
