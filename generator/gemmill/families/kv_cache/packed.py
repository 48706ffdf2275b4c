"""Packed vectors: the names of formats of keys and of values. At run time a kernel gets a format as its place in a
list.

A packed vector is its fields, one after the other (`VectorFormat.fields`). Slots of vLLM's pages have fields in the
same order. So a page's keys and its values are tensors of packed vectors: `vllm_cache` of `functions.py` cuts them out.
"""

from collections.abc import Sequence

from gemmill.families.kv_cache.formats import (
    HEAD_DIMS,
    PRESETS,
    CacheFormat,
    Method,
    PageLayout,
    RotationKind,
    VectorFormat,
    VectorSpec,
)

OWN = tuple(
    VectorFormat(method=method, bits=bits)
    for method in (Method.EDEN, Method.TURBOQUANT_MSE, Method.TURBOQUANT_PROD)
    for bits in (2, 3, 4)
)
_E2M1 = VectorFormat(method=Method.E2M1, bits=4)
_E4M3 = VectorFormat(method=Method.E4M3, bits=8)


def _of(method: Method) -> Sequence[VectorFormat]:
    return [VectorFormat(method=method, bits=bits) for bits in (3, 4)]


def name_of(format: VectorFormat) -> str:
    """A format's name: its method and, where that has several numbers of bits, its bits."""
    return format.method.value if format.method in (Method.E2M1, Method.E4M3) else f"{format.method.value}{format.bits}"


KEY_FORMATS = {name_of(x): x for x in (*OWN, *_of(Method.UNIT_CENTROIDS), _E2M1, _E4M3)}
"""Formats of keys by name, in the order in which kernels number them (kernels/kv_cache/shared/vector_coding.cuh)."""
VALUE_FORMATS = {name_of(x): x for x in (*OWN, *_of(Method.UNIFORM), _E2M1, _E4M3)}
SEEDED = len(OWN)
"""How many formats depend on a seed. They come first in both lists."""
FP8_PRESETS = ("fp8", "fp8_e4m3")
"""vLLM's names of a cache of e4m3 with a scale for each head, or one for all."""
POWERS_OF_TWO = tuple(d for d in HEAD_DIMS if d & (d - 1) == 0)
"""Head dims of keys that vLLM rotates."""
CACHE_FORMATS = tuple(f"k_{keys}_v_{values}" for keys in KEY_FORMATS for values in VALUE_FORMATS)
"""Names of formats of keys and values together, by number. Names with one format of keys follow one another."""


def spec_of_place(place: int, of_values: bool, head_dim: int, seed: int) -> VectorSpec:
    """The spec of a packed key, or value, whose format has a place in the list. A seed below 0 counts as 0."""
    format = tuple(VALUE_FORMATS.values() if of_values else KEY_FORMATS.values())[place]
    return VectorSpec(format=format, head_dim=head_dim, rotation=_rotation(format.method, of_values), seed=max(seed, 0))


def preset_format(name: str) -> str:
    """The name by which `kv_attention` knows a preset of vLLM in its layout of slots, or vLLM's cache of e4m3. Raises
    ValueError for another name."""
    if name in FP8_PRESETS:
        return f"k_{_E4M3.method.value}_v_{_E4M3.method.value}"
    slots = {x.name: x for x in PRESETS.values() if x.layout is PageLayout.SLOTS}
    if name not in slots:
        raise ValueError(
            f"Preset {name} was asked for; there are {', '.join((*slots, *FP8_PRESETS))}: choose one of these."
        )
    return f"k_{name_of(slots[name].keys)}_v_{name_of(slots[name].values)}"


def slot_sizes(format: CacheFormat, head_dim: int) -> tuple[int, int, int]:
    """Bytes of a key, of a value, and of a slot of both, padded to even."""
    key, value = format.keys.size(head_dim), format.values.size(head_dim)
    return key, value, key + value + (key + value) % 2


def _rotation(method: Method, of_values: bool) -> RotationKind:
    if method in (Method.UNIFORM, Method.E4M3) or (method is Method.E2M1 and of_values):
        return RotationKind.NONE
    return RotationKind.HADAMARD if method in (Method.UNIT_CENTROIDS, Method.E2M1) else RotationKind.RANDOM_HADAMARD
