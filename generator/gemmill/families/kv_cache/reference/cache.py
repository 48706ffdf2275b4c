"""Pages: allocated, written by slot mapping, read by page table."""

import torch
from torch import Tensor

from gemmill.families.kv_cache.formats import CacheSpec, VectorSpec
from gemmill.families.kv_cache.pages import KEYS, VALUES, Placement, page_plan
from gemmill.families.kv_cache.reference.vectors import Fields, compress

NO_SLOT = -1
"""The slot, in a slot mapping, of a token that the cache does not store."""


def allocate(spec: CacheSpec, pages: int, device: str | torch.device = "cpu") -> Tensor:
    """An empty cache of `pages` pages: zeros u8 [pages, bytes of a page]."""
    return torch.zeros(pages, page_plan(spec).page_bytes, dtype=torch.uint8, device=device)


def write(
    cache: Tensor,
    spec: CacheSpec,
    keys: Tensor,
    values: Tensor,
    slot_mapping: Tensor,
    dtype: torch.dtype = torch.float64,
    sides: tuple[VectorSpec, VectorSpec] | None = None,
) -> None:
    """Compress keys and values [tokens, kv_heads, elements] into `cache`, token t at slot_mapping[t].

    cache is u8 [pages, ...], contiguous, with the bytes of a page after the first dimension. slot_mapping is whole
    numbers [tokens]. A slot is page * page_size + place in the page, or -1 for a token without a place. `dtype` is that
    of `compress`. `sides` are the specs of keys and values, where some come rotated.

    Raises ValueError for another shape, dtype or slot, before it writes anything.
    """
    pages = _pages(cache, spec)
    for side, tensor, vectors in ((KEYS, keys, spec.keys), (VALUES, values, spec.values)):
        expected = (slot_mapping.shape[0], spec.kv_heads, vectors.head_dim)
        if tensor.shape != expected:
            raise ValueError(
                f"{side.capitalize()} {list(tensor.shape)} were to be stored at {slot_mapping.shape[0]} slots; the cache "
                f"takes {list(expected)}: [tokens, KV heads, head dim], a slot for each token."
            )
    slots = slot_mapping.to(torch.int64)
    end = pages * spec.page_size
    if slots.numel() and not NO_SLOT <= int(slots.min()) <= int(slots.max()) < end:
        raise ValueError(
            f"Slots from {int(slots.min())} to {int(slots.max())} were given; {pages} pages of {spec.page_size} tokens have "
            f"0 to {end - 1}, and -1 stores nothing: allocate more pages or correct the mapping."
        )
    stored = slots != NO_SLOT
    page, place = slots[stored] // spec.page_size, slots[stored] % spec.page_size
    fields = {
        side: compress(tensor[stored], of_side, dtype)
        for side, tensor, of_side in zip((KEYS, VALUES), (keys, values), sides or (spec.keys, spec.values), strict=True)
    }
    for placement in page_plan(spec).placements:
        _view(cache, spec, placement)[page, place] = fields[placement.side][placement.field.name]


def check_page_table(spec: CacheSpec, pages: int, block_table: Tensor, seq_lens: Tensor) -> None:
    """Raises ValueError unless every page that a length needs is in the table and in a cache of `pages` pages.

    block_table: whole numbers [batch, pages of the longest], without use of entries beyond a sequence's pages.
    seq_lens: whole numbers [batch].
    """
    if block_table.dim() != 2 or block_table.shape[0] != seq_lens.shape[0]:
        raise ValueError(
            f"A page table {list(block_table.shape)} was given for {seq_lens.shape[0]} sequences; it is [sequences, pages "
            "of the longest]: one row for each."
        )
    reach = block_table.shape[1] * spec.page_size
    for row, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= reach:
            raise ValueError(
                f"Sequence {row} has {length} tokens; the page table's {block_table.shape[1]} pages of {spec.page_size} "
                f"reach from 0 to {reach}: widen the table or correct the length."
            )
        used = block_table[row, : -(-length // spec.page_size)]
        outside = used[(used < 0) | (used >= pages)]
        if outside.numel():
            raise ValueError(
                f"The page table of sequence {row} names page {int(outside[0])}; the cache has pages 0 to {pages - 1}: "
                "correct the table or allocate more pages."
            )


def read(cache: Tensor, spec: CacheSpec, side: str, pages_of_sequence: Tensor, length: int) -> Fields:
    """Fields u8 [length, kv_heads, bytes] of the first `length` tokens of a sequence, without reading anything behind
    them.
    """
    _pages(cache, spec)
    tokens = torch.arange(length, device=cache.device, dtype=torch.int64)
    page, place = pages_of_sequence.to(torch.int64)[tokens // spec.page_size], tokens % spec.page_size
    return {
        placement.field.name: _view(cache, spec, placement)[page, place]
        for placement in page_plan(spec).placements
        if placement.side == side
    }


def _pages(cache: Tensor, spec: CacheSpec) -> int:
    """The number of a cache's pages. Raises ValueError where it is not a cache of the spec."""
    page_bytes = page_plan(spec).page_bytes
    if (
        cache.dtype is not torch.uint8
        or not cache.is_contiguous()
        or cache.dim() < 2
        or cache[:1].numel() not in (0, page_bytes)
    ):
        raise ValueError(
            f"A cache {cache.dtype} {list(cache.shape)} with strides {list(cache.stride())} was given; {spec.tag} is "
            f"contiguous torch.uint8 of {page_bytes} bytes a page, the page first: allocate it so."
        )
    return cache.shape[0]


def _view(cache: Tensor, spec: CacheSpec, placement: Placement) -> Tensor:
    """A field of the whole cache, [pages, page_size, kv_heads, bytes], sharing its memory."""
    return cache.as_strided(
        (cache.shape[0], spec.page_size, spec.kv_heads, placement.field.size),
        (page_plan(spec).page_bytes, placement.token_stride, placement.head_stride, 1),
        cache.storage_offset() + placement.offset,
    )
