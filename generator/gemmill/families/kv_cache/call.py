"""The kernel and the cache of a call of the compressed cache's ops."""

from gemmill.families.kv_cache import NAME
from gemmill.families.kv_cache.config import (
    ATTENTIONS,
    COMPILED,
    DTYPES,
    LATENT_ROWS,
    METHODS,
    KernelKind,
    KvCacheConfig,
    Operands,
    Slots,
    format_of,
)
from gemmill.families.kv_cache.formats import CacheSpec, VectorSpec
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import Arch, DType

_DTYPE_OF = {DTYPE_CODES[dtype.torch_name]: dtype for dtype in DTYPES}


_KEY_ALIGNMENT = 4
"""Bytes that addresses of keys are multiples of, as `in_slots` of kernels/kv_cache/binding.cpp has it."""


def slots_of(call: Judged) -> Slots:
    """The compile-time format of a call's kernel: `Slots.ANY` where an address is not aligned for slots."""
    number = call.get("slots") or 0
    if number == 0:
        return Slots.ANY
    if call.tensor("keys").data % _KEY_ALIGNMENT or call.tensor("values").data % call["value_alignment"]:
        return Slots.ANY
    return COMPILED[number - 1]


def class_of(call: Judged) -> int:
    """The number of a call's class."""
    found: int = call["class"]
    return found if slots_of(call) is not Slots.ANY else found - (call.get("slots") or 0)


def length_of(call: Judged) -> int:
    """Tokens of a sequence that its page table has room for, or as many as a window shows.

    `length_of` of kernels/kv_cache/binding.cpp is its twin.
    """
    pages: int = 1 if call.get("is_plain") else call["table_pages"]
    length: int = pages * call["page"]
    return min(length, call["window"] + call["rows"]) if call["window"] > 0 else length


def shaped_call_of(call: Judged) -> ShapedCall:
    """The inputs of a choice in a legal call."""
    if not call["works"]:
        sizes = 1, 0, 1, 1, 0
    elif list(KernelKind)[call["kind"]] in ATTENTIONS:
        sizes = call["batch"], call["rows"], call["heads"], call["kv_heads"], length_of(call)
    else:
        sizes = 1, 1, 1, 1, 0
    return ShapedCall(family=NAME, call_class=class_of(call), sizes=sizes, alignments=())


def config_of(call: Judged, arch: Arch) -> KvCacheConfig:
    """The config that serves a call which has passed the checks, with default launch settings: there is exactly one.

    Rotary parts in e4m3 have kernels of two tiles of rows: here the first stands for both.
    """
    rotary = DType.E4M3 if call.get("rotary_is_e4m3") else None
    return KvCacheConfig(
        kind=list(KernelKind)[call["kind"]],
        operands=Operands(
            dtype=_DTYPE_OF[call["element"]],
            head_dim=call["head_dim"],
            key_bits=call.get("key_bits") or 0,
            value_bits=call.get("value_bits") or 0,
            value_dim=call["value_dim"] if call.get("has_fewer") else 0,
            slots=slots_of(call),
            rotary=rotary,
        ),
        tile_rows=LATENT_ROWS[0] if rotary else 0,
        arch=arch,
    )


def spec_of(call: Judged) -> CacheSpec:
    """The cache of a call.

    A cache that attention reads has no method of its own: the first stands in. Seed 0 stands in for a seed below 0.
    """
    return CacheSpec(
        format=format_of(METHODS[call.get("method") or 0], call["key_bits"], call["value_bits"]),
        head_dim=call["head_dim"],
        value_dim=call["value_dim"],
        kv_heads=call["kv_heads"],
        page_size=call["page"],
        seed=max(call["seed"], 0),
    )


def sides_of(call: Judged) -> tuple[VectorSpec, VectorSpec]:
    """The specs by which a call stores its keys and its values."""
    spec = spec_of(call)
    keys = spec.keys.of_rotated if call["rotated_keys"] else spec.keys
    return keys, spec.values.of_rotated if call["rotated_values"] else spec.values


def stays_rotated(call: Judged) -> bool:
    """Whether the output of an attention stays in the basis of stored values."""
    return bool(call["rotated_out"]) or call["seed"] < 0
