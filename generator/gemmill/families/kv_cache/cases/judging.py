"""Results of the compressed cache's ops against their references, as parts of the error bound of their arithmetic."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gemmill.families.kv_cache.bounds import (
    F16,
    allowed,
    attention_bound,
    decompress_limit,
    hadamard_limit,
    lse_limit,
    output_limit,
    outside,
)
from gemmill.families.kv_cache.call import sides_of, spec_of, stays_rotated
from gemmill.families.kv_cache.cases import latent, packed_judging
from gemmill.families.kv_cache.cases.held import Given, Held
from gemmill.families.kv_cache.config import KernelKind
from gemmill.families.kv_cache.formats import CacheSpec, VectorSpec
from gemmill.families.kv_cache.pages import KEYS, VALUES, page_plan
from gemmill.families.kv_cache.reference.asked import options_of
from gemmill.families.kv_cache.reference.bits import pack_float16, unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.cache import NO_SLOT, read, write
from gemmill.families.kv_cache.reference.rotations import hadamard_transform, rotate_back
from gemmill.families.kv_cache.reference.vectors import Fields, decode, joined
from gemmill.families.kv_cache.serving import attended, restored, within_cache
from gemmill.family import Judged
from gemmill.numerics.call import LegalCall
from gemmill.numerics.cases import CodeRange
from gemmill.numerics.memory import Memory
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME

Parts = dict[str, Tensor]
"""The error of each element of each result, as a part of the allowed one: above 1 is wrong."""


def parts(op: str, before: Given, after: Given) -> Parts:
    """The errors of a call's results, from its arguments before and after the call."""
    return parts_of(held(op, before, after))


def held(op: str, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    """A call's results next to their expected values, or their errors."""
    schema = BY_NAME[op]
    call = check(schema, of_arguments(schema, [before.get(name) for name in schema.arguments]))
    if not call["works"]:
        return {}
    return _HELD[list(KernelKind)[call["kind"]]](call, by_role(call, before), by_role(call, after))


def parts_of(results: Mapping[str, Tensor | Held]) -> Parts:
    """The errors of results."""
    return {name: x.part if isinstance(x, Held) else x for name, x in results.items()}


def limits(op: str, after: Given) -> dict[str, Tensor]:
    """How far each element of a kernel's results may be from the reference's. `after` has the reference's outputs."""
    schema = BY_NAME[op]
    call = check(schema, of_arguments(schema, [after.get(name) for name in schema.arguments]))
    if not call["works"]:
        return {}
    given = by_role(call, after)
    held = _HELD[list(KernelKind)[call["kind"]]](call, given, given)
    return {name: x.limit + (x.got.double() - x.wanted).abs() for name, x in held.items() if isinstance(x, Held)}


def by_role(call: Judged, given: Given) -> Given:
    """Arguments by their roles in the family."""
    roles = dict(zip(call.schema.arguments, call.roles, strict=False))
    return {roles.get(name, name): value for name, value in given.items()}


def ranges(op: str, after: Given) -> dict[str, list[CodeRange]]:
    """The codes and norms that a store may write, where `after` has the reference's outputs. Elsewhere the cache is as
    it was.
    """
    schema = BY_NAME[op]
    call = check(schema, of_arguments(schema, [after.get(name) for name in schema.arguments]))
    if not call["works"] or list(KernelKind)[call["kind"]] is not KernelKind.COMPRESS:
        return {}
    spec, slots, cache = spec_of(call), after["slot_mapping"].reshape(-1), after["cache"]
    exists = (slots >= 0) & (slots < call["pages"] * call["page"])
    where = slots[exists] // spec.page_size, slots[exists] % spec.page_size
    sides = zip((KEYS, VALUES), sides_of(call), strict=True)
    may_be = {side: allowed(after[side][exists], of_side) for side, of_side in sides}
    stored = {side: _stored(cache.contiguous(), spec, side, _all_slots(cache, spec)) for side in may_be}
    found = []
    for placement in page_plan(spec).placements:
        field, name = stored[placement.side][placement.field.name], placement.field.name
        vectors = spec.keys if placement.side == KEYS else spec.values
        bits, elements = vectors.format.code_bits, vectors.head_dim
        codes = unpack_codes(field, bits, elements) if name == "codes" else _as_numbers(field)
        low, high = (codes.unflatten(0, (-1, spec.page_size)).clone() for _ in range(2))
        own = may_be[placement.side]
        low[where], high[where] = own.codes if name == "codes" else _norm_bits(*own.norms)
        width = bits if name == "codes" else 16
        strides = (cache.stride(0), placement.token_stride, placement.head_stride)
        found.append(
            CodeRange(
                bits=width,
                first=8 * placement.offset,
                strides=(*(8 * stride for stride in strides), width),
                low=low,
                high=high,
            )
        )
    return {"cache": found}


def _all_slots(cache: Tensor, spec: CacheSpec) -> Tensor:
    return torch.arange(cache.shape[0] * spec.page_size, device=cache.device, dtype=torch.int64)


def _norm_bits(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest and highest norms as whole numbers [..., 1].

    From infinity on all are NaN, and each is right where one is.
    """
    low = torch.where(low.isnan(), torch.inf, low)
    ends = (_as_numbers(pack_float16(end)) for end in (low, high))
    return next(ends), torch.where(high.isfinite()[..., None], next(ends), 0x7FFF)


def _as_numbers(scalars: Tensor) -> Tensor:
    """Non-negative float16 scalars, u8 [..., 2], as whole numbers [..., 1] in the order of their values."""
    return scalars.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF


def wrong(found: Parts) -> Tensor:
    """How many elements are wrong."""
    counts = [(~(part <= 1)).sum() for part in found.values()]
    return torch.stack(counts).sum() if counts else torch.zeros((), dtype=torch.int64, device="cpu")


def report(found: Parts) -> str:
    """The fault in words; empty for right results."""
    counts = {name: int((~(part <= 1)).sum()) for name, part in found.items()}
    return ", ".join(
        f"{count} elements of {name} are farther from the reference than allowed, the worst {worst_part(found[name]):.3g} times"
        for name, count in counts.items()
        if count
    )


def worst_part(part: Tensor) -> float:
    """The largest error; infinity where an error is NaN."""
    return float(part.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if part.numel() else 0.0


def _hadamard(_: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    x, scale = before["x"], before["scale"]
    return {"out": Held(after["out"], hadamard_transform(x.double(), scale), hadamard_limit(x, scale))}


def _compress(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    spec, slots = spec_of(call), before["slot_mapping"].reshape(-1)
    exists = (slots >= 0) & (slots < call["pages"] * call["page"])
    known, vectors = torch.where(exists, slots, NO_SLOT), (before["keys"], before["values"])
    blank, full = (
        torch.full(before["cache"].shape, byte, dtype=torch.uint8, device=slots.device) for byte in (0, 0xFF)
    )
    sides = sides_of(call)
    for cache in (blank, full):
        write(cache, spec, *vectors, known, sides=sides)
    owned = blank == full
    count = ((after["cache"] != before["cache"]) & ~owned).sum()
    for side, of_side, x in zip((KEYS, VALUES), sides, vectors, strict=True):
        found, wanted = (_stored(cache, spec, side, slots[exists]) for cache in (after["cache"].contiguous(), blank))
        count = count + _wrong_fields(found, wanted, x[exists], of_side)
    return {"cache": 2.0 * count}


def _stored(cache: Tensor, spec: CacheSpec, side: str, slots: Tensor) -> Fields:
    """The fields of stored vectors in these slots, each [slots, kv_heads, bytes]."""
    pages = torch.arange(cache.shape[0], device=cache.device, dtype=torch.int64)
    return {name: field[slots] for name, field in read(cache, spec, side, pages, len(pages) * spec.page_size).items()}


def _wrong_fields(found: Fields, wanted: Fields, x: Tensor, spec: VectorSpec) -> int:
    """How many codes and scalars no float32 arithmetic explains. Codes of a vector whose scale is 0 or not finite mean
    nothing."""
    scale, expected = (unpack_float16(fields["norm"], torch.float64) for fields in (found, wanted))
    is_finite = torch.isfinite(x.double()).all(-1)
    _, scalars = outside(_where(found, is_finite), x[is_finite], spec)
    means = is_finite & (expected > 0) & torch.isfinite(expected) & (scale > 0) & torch.isfinite(scale)
    codes, _ = outside(_where(found, means), x[means], spec)
    return codes + scalars + int(torch.isfinite(scale[~is_finite]).sum())


def _where(fields: Fields, mask: Tensor) -> Fields:
    return {name: field[mask] for name, field in fields.items()}


def _decompress(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    spec, slots = spec_of(call), before["slot_mapping"].reshape(-1)
    exists = (slots >= 0) & (slots < call["pages"] * call["page"])
    cache, found = before["cache"].contiguous(), {}
    for name, side, of_side, wanted in zip(
        ("keys", "values"), (KEYS, VALUES), (spec.keys, spec.values), restored(call, dict(before)), strict=True
    ):
        fields = _stored(cache, spec, side, slots[exists])
        limit = torch.zeros_like(wanted)
        limit[exists] = decompress_limit(fields, of_side, before[name].dtype)
        found[name] = Held(after[name], wanted, limit, lost=~limit.isfinite())
    return found


def _decode(call: Judged, before: Given, after: Given) -> Mapping[str, Tensor | Held]:
    spec, options = spec_of(call), options_of(call)
    lengths, table = within_cache(call, dict(before))
    wanted, wanted_lse = attended(call, dict(before))
    sinks = None if before.get("sinks") is None else before["sinks"].reshape(-1).double()
    queries, group = before["q"].double(), call["heads"] // call["kv_heads"]
    if call["seed"] < 0:
        queries = rotate_back(queries, spec.keys.rotation, spec.seed)
    cache, rotated_out = before["cache"].contiguous(), stays_rotated(call)
    limits, lse_limits = torch.zeros_like(wanted), torch.zeros_like(wanted_lse)
    for row, (q, length) in enumerate(zip(queries, lengths.tolist(), strict=True)):
        pages = table[row]
        bound = attention_bound(q, cache, spec, pages, length, options, F16, sinks, rotated_out=rotated_out)
        limits[row] = output_limit(wanted[row], bound, length, before["q"].dtype)
        keys = joined(decode(read(cache, spec, KEYS, table[row], length), spec.keys))
        norms = keys.square().sum(-1).sqrt().nan_to_num().amax(0) if length else keys.new_zeros(call["kv_heads"])
        lse_limits[row] = lse_limit(q, norms.repeat_interleave(group), wanted_lse[row], options, F16)
    found = {"out": Held(after["out"], wanted, limits)}
    if after.get("lse") is not None:
        found["lse"] = Held(after["lse"], wanted_lse, lse_limits)
    return found


_HELD: dict[KernelKind, Callable[[Judged, Given, Given], Mapping[str, Tensor | Held]]] = {
    KernelKind.HADAMARD: _hadamard,
    KernelKind.COMPRESS: _compress,
    KernelKind.DECODE: _decode,
    KernelKind.DECOMPRESS: _decompress,
    KernelKind.PACK: packed_judging.packed,
    KernelKind.UNPACK: packed_judging.plain,
    KernelKind.SCORES: packed_judging.scored,
    KernelKind.ATTEND: packed_judging.attended,
    KernelKind.LATENT: latent.held,
}


class KvCacheJudge:
    """The judge of one random call."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._call, self._memory = call, memory
        self._before = dict(call.plain) | {name: memory.dense(name, before) for name in call.slots}

    def _parts(self) -> Parts:
        after = {name: self._memory.dense(name) for name in self._call.slots}
        return parts(self._call.op, self._before, after)

    def wrong(self) -> Tensor:
        """How many elements are wrong."""
        return wrong(self._parts())

    def report(self) -> str:
        """The fault in words."""
        return report(self._parts())
