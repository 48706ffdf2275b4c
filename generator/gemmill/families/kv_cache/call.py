"""What a call of the compressed cache's ops stands for: its kernel, its cache, its options."""

from typing import Any

from torch import Tensor

from gemmill.families.kv_cache.config import DTYPES, METHODS, KvCacheConfig, Kind, format_of
from gemmill.families.kv_cache.formats import CacheSpec
from gemmill.families.kv_cache.reference.attention import AttentionOptions
from gemmill.family import Judged
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import Arch

_DTYPE_OF = {DTYPE_CODES[dtype.torch_name]: dtype for dtype in DTYPES}


def config_of(call: Judged, arch: Arch) -> KvCacheConfig:
    """The config that serves a call which has passed the checks: there is exactly one."""
    return KvCacheConfig(
        kind=list(Kind)[call["kind"]],
        dtype=_DTYPE_OF[call["element"]],
        head_dim=call["head_dim"],
        method=METHODS[call.get("method") or 0],
        key_bits=call.get("key_bits") or 0,
        value_bits=call.get("value_bits") or 0,
        page_size=call.get("attended_page") or 0,
        arch=arch,
    )


def spec_of(call: Judged) -> CacheSpec:
    """The cache of a call. What attention reads is of no method; a seed below 0 stands for any rotation."""
    return CacheSpec(
        format=format_of(METHODS[call.get("method") or 0], call["key_bits"], call["value_bits"]),
        head_dim=call["head_dim"],
        kv_heads=call["kv_heads"],
        page_size=call["page"],
        seed=max(call["seed"], 0),
    )


def options_of(call: Judged) -> AttentionOptions:
    """What a call of attention says beside its tensors."""
    return AttentionOptions(scale=call["scale"], causal=bool(call["causal"]), window=call["window"] or None)


def within_cache(call: Judged, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Lengths and page table with what the cache has not replaced by the nearest that it has."""
    lengths = given["seq_lens"].reshape(-1).long()
    reach = call["table_pages"] * call["page"] if call["pages"] else 0
    return lengths.clamp(0, reach), given["block_table"].long().clamp(0, max(call["pages"] - 1, 0))
