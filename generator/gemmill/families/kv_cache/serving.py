"""The compressed cache's ops in the runtime: their CPU path, and the sentences for variants that a build lacks."""

from collections.abc import Iterator

import torch

from gemmill.families import kv_cache
from gemmill.families.kv_cache.call import config_of, shaped_call_of, sides_of, spec_of, stays_rotated
from gemmill.families.kv_cache.config import KernelKind, shared_memory
from gemmill.families.kv_cache.pages import KEYS, VALUES
from gemmill.families.kv_cache.reference.asked import Given, attention, options_of, pack, scores, unpack
from gemmill.families.kv_cache.reference.attention import decode_attention
from gemmill.families.kv_cache.reference.cache import NO_SLOT, read, write
from gemmill.families.kv_cache.reference.latent import latent_attention
from gemmill.families.kv_cache.reference.rotations import hadamard_transform, rotate, rotate_back
from gemmill.families.kv_cache.reference.vectors import decompress
from gemmill.families.kv_cache.selections import is_served
from gemmill.family import Judged, OpSchema
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.runtime import checks
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Result, Serving, lacks_one
from gemmill.space.names import to_name
from gemmill.vocab import Arch

_INSTEAD = {KernelKind.COMPRESS: "call kv_compress_keys and kv_compress_values"}
"""The way around a kernel that an architecture has no room for."""


def _lacks(manifest: Manifest, op: OpSchema, call: Call, choice: Choice) -> str:
    judged, arch = checks.check(op, call), Arch(manifest.arch)
    kind, head_dim = list(KernelKind)[judged["kind"]], judged["head_dim"]
    if (needed := shared_memory(kind, head_dim)) > arch.shared_memory_bytes:
        instead = _INSTEAD.get(kind, "restore the vectors, then attend")
        return (
            f"build {manifest.build_id} lacks a variant for such calls, and none can be built: kernels of {head_dim} elements take "
            f"up to {needed} bytes of shared memory, a block of {arch} has {arch.shared_memory_bytes}; {instead}"
        )
    if judged.get("rotary_is_e4m3") and arch is not Arch.SM90A:
        return (
            f"build {manifest.build_id} lacks a variant for such calls, and none can be built: rotary parts in e4m3 have kernels of "
            f"{Arch.SM90A} alone, and this build is of {arch}; store them in the queries' type"
        )
    wanted = config_of(judged, arch)
    selection = "default" if is_served(wanted) else "sweep"
    return lacks_one(manifest, kv_cache.NAME, to_name(wanted), kernels="compressed caches", selection=selection)


def _results(call: Judged, given: Given) -> Iterator[Result]:
    if call["works"]:
        yield from _COMPUTE[list(KernelKind)[call["kind"]]](call, given)


def _hadamard(call: Judged, given: Given) -> Iterator[Result]:
    yield given["out"], hadamard_transform(given["x"].double(), given["scale"])


def _compress(call: Judged, given: Given) -> Iterator[Result]:
    slots = given["slot_mapping"].reshape(-1)
    exists = (slots >= 0) & (slots < call["pages"] * call["page"])
    cache = given["cache"].clone(memory_format=torch.contiguous_format)
    known = torch.where(exists, slots, NO_SLOT)
    write(cache, spec_of(call), given["keys"], given["values"], known, sides=sides_of(call))
    yield given["cache"], cache


def restored(call: Judged, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a call's slots, float64 [tokens, heads, elements]; zeros where the cache has no such slot."""
    spec, slots = spec_of(call), given["slot_mapping"].reshape(-1)
    cache, end = given["cache"].contiguous(), call["pages"] * call["page"]
    exists, pages = (slots >= 0) & (slots < end), torch.arange(call["pages"], device=slots.device, dtype=torch.int64)
    found = []
    for side, vectors in ((KEYS, spec.keys), (VALUES, spec.values)):
        fields = read(cache, spec, side, pages, end)
        out = torch.zeros(given[side].shape, dtype=torch.float64, device=slots.device)
        out[exists] = decompress({name: field[slots[exists]] for name, field in fields.items()}, vectors)
        found.append(out)
    return found[0], found[1]


def _decompress(call: Judged, given: Given) -> Iterator[Result]:
    keys, values = restored(call, given)
    yield given["keys"], keys
    yield given["values"], values


def _decode(call: Judged, given: Given) -> Iterator[Result]:
    out, lse = attended(call, given)
    yield given["out"], out
    if given.get("lse") is not None:
        yield given["lse"], lse


def within_cache(call: Judged, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths and page table of a call. The nearest page or length of its cache replaces one that it does not have."""
    lengths = given["seq_lens"].reshape(-1).long()
    reach = call["table_pages"] * call["page"] if call["pages"] else 0
    return lengths.clamp(0, reach), given["block_table"].long().clamp(0, max(call["pages"] - 1, 0))


def attended(call: Judged, given: Given) -> Result:
    """Output [batch, rows, heads, elements of a value] and log-sum-exp [batch, heads, rows] of a call in float64.

    Lengths and pages are those that its cache has (`within_cache`).
    """
    spec, q, cache, sinks = spec_of(call), given["q"].double(), given["cache"].contiguous(), given.get("sinks")
    lengths, table = within_cache(call, given)
    if call["seed"] < 0:  # the reference rotates, by the transpose of the rotation that undoes it
        q = rotate_back(q, spec.keys.rotation, spec.seed)
    sinks = None if sinks is None else sinks.reshape(-1)
    out, lse = decode_attention(q, cache, spec, table, lengths, options_of(call), sinks)
    return (rotate(out, spec.values.rotation, spec.seed) if stays_rotated(call) else out), lse


_COMPUTE = {
    KernelKind.HADAMARD: _hadamard,
    KernelKind.COMPRESS: _compress,
    KernelKind.DECODE: _decode,
    KernelKind.DECOMPRESS: _decompress,
    KernelKind.PACK: pack,
    KernelKind.UNPACK: unpack,
    KernelKind.SCORES: scores,
    KernelKind.ATTEND: attention,
    KernelKind.LATENT: latent_attention,
}
SERVING = Serving(results=_results, asked=shaped_call_of, lacks=_lacks)
