"""The results of the ops of packed vectors, from a judged call and its arguments by role."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.call import stays_rotated
from gemmill.families.kv_cache.formats import VectorSpec
from gemmill.families.kv_cache.packed import spec_of_place
from gemmill.families.kv_cache.reference.attention import AttentionOptions, Stored, attend, attention_scores
from gemmill.families.kv_cache.reference.packed import by_scales, restored, sequence, written
from gemmill.families.kv_cache.reference.rotations import rotate, rotate_back
from gemmill.families.kv_cache.reference.vectors import from_bytes
from gemmill.family import Judged

Given = dict[str, Any]
"""Arguments by role."""
Result = tuple[Tensor, Tensor]
"""A tensor that the call writes, and its expected value."""


def side_spec(call: Judged) -> VectorSpec:
    """The spec of the vectors of a call that packs or unpacks one side."""
    spec = spec_of_place(call["format_index"], bool(call["of_values"]), call["head_dim"], call["seed"])
    return spec.of_rotated if call.get("rotated") else spec


def key_spec(call: Judged) -> VectorSpec:
    """The spec of the keys that a call reads."""
    return spec_of_place(call["key_format"], False, call["head_dim"], call["seed"])


def value_spec(call: Judged) -> VectorSpec:
    """The spec of the values that a call reads."""
    return spec_of_place(call["value_format"], True, call["head_dim"], call["seed"])


def pack(call: Judged, given: Given) -> Iterator[Result]:
    """Packed vectors, with those of the call stored."""
    yield (
        given["packed"],
        written(given["packed"], given["vectors"], given.get("slot_mapping"), side_spec(call), given.get("scales")),
    )


def unpack(call: Judged, given: Given) -> Iterator[Result]:
    """Vectors restored from packed ones."""
    yield (
        given["vectors"],
        restored(given["packed"], call["tokens"], given.get("slot_mapping"), side_spec(call), given.get("scales")),
    )


def scores(call: Judged, given: Given) -> Iterator[Result]:
    """Inner products of queries and keys, without scale or mask."""
    spec = key_spec(call)
    keys = from_bytes(given["keys"].contiguous(), spec)
    yield given["scores"], attention_scores(queries(call, given), keys, spec)


def queries(call: Judged, given: Given) -> Tensor:
    """Queries in float64, times the scales of keys."""
    group: int = call["heads"] // max(call["kv_heads"], 1)
    return by_scales(given["q"].double(), given.get("key_scales"), group)


def options_of(call: Judged) -> AttentionOptions:
    """The options of an attention, from a call."""
    return AttentionOptions(
        scale=call["scale"],
        causal=bool(call["causal"]),
        window=call["window"] or None,
        soft_cap=call["softcap"] or None,
    )


def sequences(call: Judged, given: Given) -> Iterator[tuple[Tensor, int, Stored]]:
    """Queries in their own basis times the scales of keys, length, and stored tokens of each sequence.

    The nearest page or length of the cache replaces one that it does not have.
    """
    keys, values, table = given["keys"], given["values"], given.get("block_table")
    pages = call["pages"]
    table = (
        torch.arange(call["batch"], device=keys.device, dtype=torch.int64)[:, None] if table is None else table.long()
    )
    reach = table.shape[1] * call["page"] if pages else 0
    lengths = given["seq_lens"].reshape(-1).long().clamp(0, reach).tolist()
    table, specs = table.clamp(0, max(pages - 1, 0)), (key_spec(call), value_spec(call))
    for q, own, length in zip(queries(call, given), table, lengths, strict=True):
        if call["seed"] < 0:  # the reference rotates, by the transpose of the rotation that undoes it
            q = rotate_back(q, specs[0].rotation, specs[0].seed)
        yield q, length, sequence(keys, values, own, length, *specs)


def attention(call: Judged, given: Given) -> Iterator[Result]:
    """Output and log-sum-exp."""
    sinks = given.get("sinks")
    sinks = None if sinks is None else sinks.reshape(-1).double()
    found = [attend(q, stored, options_of(call), sinks) for q, _, stored in sequences(call, given)]
    group = call["heads"] // max(call["kv_heads"], 1)
    out = by_scales(torch.stack([out for out, _ in found]), given.get("value_scales"), group)
    spec = value_spec(call)
    yield given["out"], rotate(out, spec.rotation, spec.seed) if stays_rotated(call) else out
    if given.get("lse") is not None:
        yield given["lse"], torch.stack([lse for _, lse in found])
