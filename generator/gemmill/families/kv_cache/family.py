"""The declaration of the compressed cache's kernels."""

from gemmill.families.kv_cache import NAME, selections
from gemmill.families.kv_cache.config import HALF_WAVES, RULES, KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.ops import OPS, SCHEMAS_OF
from gemmill.families.kv_cache.questions import QUESTIONS
from gemmill.families.kv_cache.spelling import spell
from gemmill.families.kv_cache.tuning import TUNING
from gemmill.family import Family, Field, Grammar, Kernels, words
from gemmill.vocab import DType

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS = 3.0
_SECONDS = {
    KernelKind.HADAMARD: 0.3,
    KernelKind.COMPRESS: 0.6,
    KernelKind.DECODE: 1.2,
    KernelKind.DECOMPRESS: 0.5,
    KernelKind.PACK: 0.6,
    KernelKind.UNPACK: 0.5,
    KernelKind.SCORES: 1.0,
    KernelKind.ATTEND: 4.0,
    KernelKind.LATENT: 3.0,
}

_SLOT_SECONDS = 3.0
_TILE_SECONDS = 3.0


def _seconds(config: KvCacheConfig) -> float:
    if config.tile_rows:
        return _TILE_SECONDS
    return _SECONDS[config.kind] if config.operands.slots is Slots.ANY else _SLOT_SECONDS


GRAMMAR = Grammar(
    KvCacheConfig,
    (
        Field("{kind}"),
        Field("{operands.dtype}"),
        Field("d{operands.head_dim}"),
        Field("vd{operands.value_dim}", default=0),
        Field("rotary{operands.rotary}", default=None, spelled={"operands.rotary": words({DType.E4M3: DType.E4M3})}),
        Field("{operands.slots}", default=Slots.ANY),
        Field("k{operands.key_bits}v{operands.value_bits}", default=(0, 0)),
        Field("r{tile_rows}", default=0),
        Field("w{half_waves}", default=HALF_WAVES[0]),
        Field("s{slices}", default=0),
    ),
)

KV_CACHE = Kernels(
    tag=KvCacheConfig.tag,
    doc="hand-written CUDA",
    grammar=GRAMMAR,
    ops=lambda config: tuple(schema.name for schema in SCHEMAS_OF[config.kind]),
    rules=RULES,
    spell=spell,
    seconds=_seconds,
    unit_seconds=_UNIT_SECONDS,
    unit_size=24,
)
FAMILY = Family(
    name=NAME,
    doc="stores keys and values in 2 to 4 bits an element, and attends over them",
    asks=OPS,
    kernels=(KV_CACHE,),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
