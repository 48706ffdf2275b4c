"""The declaration of the compressed cache's kernels."""

from dataclasses import fields
from typing import Any

from gemmill.families.kv_cache import NAME, selections
from gemmill.families.kv_cache.accepts import KvCachePredicate, accepted
from gemmill.families.kv_cache.config import RULES, Kind, KvCacheConfig, Slots
from gemmill.families.kv_cache.names import from_fields, to_fields
from gemmill.families.kv_cache.ops import OPS
from gemmill.families.kv_cache.questions import QUESTIONS
from gemmill.families.kv_cache.spelling import spell
from gemmill.families.kv_cache.tuning import TUNING
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS = 3.0
_SECONDS = {
    Kind.HADAMARD: 0.3,
    Kind.COMPRESS: 0.6,
    Kind.DECODE: 1.2,
    Kind.DECOMPRESS: 0.5,
    Kind.PACK: 0.6,
    Kind.UNPACK: 0.5,
    Kind.SCORES: 1.0,
    Kind.ATTEND: 4.0,
}

_SLOT_SECONDS = 3.0


def _filters(config: KvCacheConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


KV_CACHE = Kernels(
    tag=KvCacheConfig.tag,
    doc="hand-written CUDA",
    config=KvCacheConfig,
    accepts=KvCachePredicate,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.NVCC,
    seconds=lambda config: _SECONDS[config.kind] if config.slots is Slots.ANY else _SLOT_SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=24,
)
FAMILY = Family(
    name=NAME,
    doc="stores keys and values in 2 to 4 bits an element, and attends over them",
    asks=OPS,
    kernels=(KV_CACHE,),
    cases="gemmill.families.kv_cache.cases",
    serving="gemmill.families.kv_cache.serving",
    questions=QUESTIONS,
    functions="gemmill.families.kv_cache.functions",
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=TUNING,
)
