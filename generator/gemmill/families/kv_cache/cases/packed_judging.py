"""Errors of the results of the ops of packed vectors, as parts of the error bound of their arithmetic."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gemmill.arithmetic import half_unit_in_last_place
from gemmill.families.kv_cache.bounds import F16, lse_limit, stored_attention_bound
from gemmill.families.kv_cache.call import stays_rotated
from gemmill.families.kv_cache.cases.held import Given, Held
from gemmill.families.kv_cache.cases.packed_bounds import packed_output_limit, scores_limit, unpack_limit, wrong_bytes
from gemmill.families.kv_cache.reference.asked import (
    attention,
    key_spec,
    options_of,
    queries,
    scores,
    sequences,
    side_spec,
    unpack,
)
from gemmill.families.kv_cache.reference.packed import by_scales, existing, over_scales
from gemmill.families.kv_cache.reference.vectors import decode, from_bytes, joined, transformed_queries
from gemmill.family import Judged


def packed(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    """Twice the number of wrong elements of packed vectors, and of bytes that the op must not write."""
    spec, x = side_spec(call), before["vectors"]
    exists, places = existing(before.get("slot_mapping"), x.shape[0], call["slot_count"], x.device)
    same = after["packed"] == before["packed"]
    same[places] = True
    found = from_bytes(after["packed"][places].contiguous(), spec)
    return {"packed": 2.0 * ((~same).sum() + wrong_bytes(found, over_scales(x, before.get("scales"))[exists], spec))}


def plain(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    """Errors of restored vectors. Where the reference is infinite or NaN, a result must be infinite or NaN, of any
    value.
    """
    spec, name = side_spec(call), "values" if call["of_values"] else "keys"
    ((_, wanted),) = unpack(call, dict(before))
    exists, places = existing(before.get("slot_mapping"), call["tokens"], call["slot_count"], wanted.device)
    limit = torch.zeros_like(wanted)
    dtype, scales = after["vectors"].dtype, before.get("scales")
    limit[exists] = by_scales(
        unpack_limit(from_bytes(before["packed"][places].contiguous(), spec), spec, dtype), scales
    )
    if scales is not None:
        limit = limit + half_unit_in_last_place(wanted, dtype)
    part = Held(after["vectors"], wanted, limit).part
    is_finite = limit.isfinite() & wanted.isfinite()
    return {name: torch.where(is_finite, part, torch.where(after["vectors"].isfinite(), torch.inf, 0.0))}


def scored(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    """Errors of scores. A score must be not finite wherever its key is."""
    spec = key_spec(call)
    ((_, wanted),) = scores(call, dict(before))
    keys = from_bytes(before["keys"].contiguous(), spec)
    limits = [
        scores_limit(q, {name: field[i] for name, field in keys.items()}, spec)
        for i, q in enumerate(queries(call, dict(before)))
    ]
    return {"scores": Held(after["scores"], wanted, torch.stack(limits))}


def attended(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    """Errors of the output and the log-sum-exp."""
    wanted = [value for _, value in attention(call, dict(before))]
    out, lse = wanted[0], wanted[1] if len(wanted) > 1 else None
    options, group = options_of(call), call["heads"] // call["kv_heads"]
    sinks = None if before.get("sinks") is None else before["sinks"].reshape(-1).double()
    limits, rotated_out = torch.zeros_like(out), stays_rotated(call)
    lse_limits = None if lse is None else torch.zeros_like(lse)
    for row, (q, length, stored) in enumerate(sequences(call, dict(before))):
        bound = stored_attention_bound(q, stored, length, options, F16, sinks, rotated_out=rotated_out)
        dtype, scales = before["q"].dtype, before.get("value_scales")
        codes = out[row] if scales is None else by_scales(out[row], 1 / scales, group)
        limit = packed_output_limit(codes, bound, stored.values, stored.value_spec, dtype)
        limits[row] = by_scales(limit, scales, group)
        if scales is not None:
            limits[row] += half_unit_in_last_place(out[row], dtype)
        if lse is None or lse_limits is None:
            continue
        keys = joined(decode(stored.keys, stored.key_spec))
        norms = keys.square().sum(-1).sqrt().nan_to_num().amax(0) if length else keys.new_zeros(call["kv_heads"])
        query = joined(transformed_queries(q, stored.key_spec))
        lse_limits[row] = lse_limit(query, norms.repeat_interleave(group), lse[row], options, F16)
    found = {"out": Held(after["out"], out, limits)}
    if lse is not None and lse_limits is not None:
        found["lse"] = Held(after["lse"], lse, lse_limits)
    return found
