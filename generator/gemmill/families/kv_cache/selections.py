"""The compressed cache's kernels of the named selections."""

from collections.abc import Iterator

from gemmill.families.kv_cache.config import COMMON_HEAD_DIM, KvCacheConfig, Slots, offered_kinds
from gemmill.families.kv_cache.ops import configs_of
from gemmill.vocab import Arch, DType

_SERVED_SLOTS = {256: (Slots.K8V4, Slots.NC4), 512: (Slots.K8V4, Slots.NC4)}
"""Formats of slots that people serve with head dims other than 128."""
_SERVED_BITS = {512: 4}
"""Bits in use with a head dim of which the default selection has only some."""
_SERVED_BITS_OF_FEWER = 4
"""Bits in use where values have fewer elements than keys."""
_SERVED_DTYPE_OF_E4M3 = DType.BF16
"""Type of queries in use with rotary parts in e4m3."""


def is_served(config: KvCacheConfig) -> bool:
    """Whether the default selection has a config, because its format is in use with its head dim."""
    x = config.operands
    if x.slots is not Slots.ANY:
        return x.head_dim == COMMON_HEAD_DIM or x.slots in _SERVED_SLOTS.get(x.head_dim, ())
    if x.rotary is not None and x.dtype is not _SERVED_DTYPE_OF_E4M3:
        return False
    if x.value_dim:
        return x.key_bits == _SERVED_BITS_OF_FEWER
    return x.key_bits in (0, _SERVED_BITS.get(x.head_dim, x.key_bits))


def sweep(arch: Arch) -> Iterator[KvCacheConfig]:
    """Every config that an op reaches. Only those on sm90a have ever run."""
    for kind in offered_kinds(arch):
        yield from configs_of(kind, arch)


def default(arch: Arch) -> Iterator[KvCacheConfig]:
    """The configs of the default selection."""
    yield from filter(is_served, sweep(arch))


def _is_plain(config: KvCacheConfig) -> bool:
    return config == config.compiled and not config.tile_rows


def smoke(arch: Arch) -> Iterator[KvCacheConfig]:
    """One config of each op: bf16, 128 elements, 4 bits; on sm90a alone."""
    for config in default(arch) if arch is Arch.SM90A else ():
        x = config.operands
        is_stored = x.key_bits in (0, 4) and x.value_bits in (0, 4)
        is_common = x.dtype is DType.BF16 and x.head_dim == COMMON_HEAD_DIM
        if is_common and is_stored and x.slots in (Slots.ANY, Slots.NC4) and _is_plain(config):
            yield config
