"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.kv_cache.config import KvCacheConfig, Slots
from gemmill.families.kv_cache.ops import SCHEMAS_OF
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class KvCachePredicate:
    """The calls that a kernel takes, of any sizes, strides and alignments of vectors.

    A kernel that is compiled for a format of slots takes only vectors that lie in slots.
    """

    ops: tuple[str, ...]
    dtype: DType
    head_dim: int
    key_bits: int
    value_bits: int
    slots: Slots = Slots.ANY

    @property
    def operand_dtype(self) -> DType:
        """Dtype of rows, of keys and values, or of queries."""
        return self.dtype


def accepted(config: KvCacheConfig) -> KvCachePredicate:
    """The calls that a kernel of this config takes."""
    return KvCachePredicate(
        ops=tuple(schema.name for schema in SCHEMAS_OF[config.kind]),
        dtype=config.dtype,
        head_dim=config.head_dim,
        key_bits=config.key_bits,
        value_bits=config.value_bits,
        slots=config.slots,
    )
