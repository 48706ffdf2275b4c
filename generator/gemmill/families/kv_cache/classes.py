"""Classes of calls: one config serves each, whose kind and operands these are.

Slots come last. The binding takes them back from a call whose addresses no kernel of slots takes.
"""

from gemmill.families.kv_cache.config import BITS, COMPILED, DTYPES, KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.formats import HEAD_DIMS
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType

_BITS = {bits: bits for bits in (0, *BITS)}
CLASSES = Classes(
    (
        ClassAxis(name="rotary", expression="rotary_is_e4m3", values={None: 0, DType.E4M3: 1}),
        ClassAxis(name="kind", expression="kind", values={x: i for i, x in enumerate(KernelKind)}),
        ClassAxis(name="dtype", expression="element", values={x: DTYPE_CODES[x.torch_name] for x in DTYPES}),
        ClassAxis(name="head_dim", expression="head_dim", values={columns: columns for columns in HEAD_DIMS}),
        ClassAxis(name="key_bits", expression="key_bits", values=_BITS),
        ClassAxis(name="value_bits", expression="value_bits", values=_BITS),
        ClassAxis(name="value_dim", expression="has_fewer", values={0: 0, 128: 1}),
        ClassAxis(name="slots", expression="slots", values={Slots.ANY: 0} | {x: i + 1 for i, x in enumerate(COMPILED)}),
    )
)


def class_of_config(config: KvCacheConfig) -> int:
    """The number of the class that a config serves."""
    return CLASSES.number_of(kind=config.kind, **vars(config.operands))
