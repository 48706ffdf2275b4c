"""The declaration of the gated GEMMs."""

from gemmill.families.gated_mm import NAME, selections
from gemmill.families.gated_mm.config import (
    GROUP,
    AnyConfig,
    GatedConfig,
    GatedPartsConfig,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES, GROUPED_MM_ACT_QUANT
from gemmill.families.gated_mm.facts import Facts
from gemmill.families.gated_mm.ops import OPS, SCALED_MM_ACT_QUANT
from gemmill.families.gated_mm.questions import QUESTIONS
from gemmill.families.gated_mm.rules import PARTS_RULES, RULES, UNALIGNED_RULES
from gemmill.families.gated_mm.spelling import spell_parts, spell_unaligned
from gemmill.families.gated_mm.tuning import TUNING
from gemmill.family import DslBody, Family, Field, Former, Grammar, HostCode, Kernels, mark, of_dsl, words
from gemmill.gemm.host import host_facts, shared_bytes, table_words
from gemmill.vocab import DType

# CPU seconds of CuTe DSL 4.8.1 on a 2-core x86-64 build machine, 2026-11-22: a process's import, then each variant.
_UNIT_SECONDS, _SECONDS = 2.0, 3.0
# The same of nvcc 13.
_NVCC_UNIT_SECONDS, _NVCC_SECONDS, _PARTS_SECONDS = 26.0, 4.0, 1.0
_ENTRY = "gemmill.families.gated_mm.dsl.export"
_OF_E4M3, _OF_S8 = {"operands.dtype": DType.E4M3}, {"operands.dtype": DType.S8}
_IN_GROUPS = {"operands.group_size": GROUP}
_BY_EXPERT, _GATHERED = {"operands.by_expert": True}, {"operands.by_expert": True, "operands.indexed": True}
GRAMMAR = Grammar(
    GatedConfig,
    (
        Field("{operands.dtype}"),
        Field("{epilogue.result}"),
        Field("{epilogue.activation}"),
        Field("group{operands.group_size}", default=0),
        mark("rows", "operands.rows_scaled"),
        mark("experts", "operands.by_expert"),
        mark("indexed", "operands.indexed"),
        Field("t{design.tile_shape_mnk}"),
        Field("c{design.cluster_shape_mnk}"),
        Field("{design.kernel_schedule}"),
        Field("{design.accumulation}"),
        Field("{design.swap_ab}", spelled={"design.swap_ab": words({False: "ab", True: "swapab"})}),
        Field("s{design.stages}"),
        Field("p{design.partial_sets}", default=2),
    ),
    aliases={
        "gatedgroupmm": Former(told=_IN_GROUPS, only=_OF_E4M3),
        "gatedexpertmm": Former(told=_BY_EXPERT, only=_OF_E4M3),
        "gatedexpertgroupmm": Former(told=_BY_EXPERT | _IN_GROUPS, only=_OF_E4M3),
        "gatedgatheredmm": Former(told=_GATHERED, only=_OF_E4M3),
        "gatedgatheredgroupmm": Former(told=_GATHERED | _IN_GROUPS, only=_OF_E4M3),
        "gatedint8mm": Former(only=_OF_S8),
        "gatedint8expertmm": Former(told=_BY_EXPERT, only=_OF_S8),
        "gatedint8gatheredmm": Former(told=_GATHERED, only=_OF_S8),
    },
)
UNALIGNED_GRAMMAR = Grammar(
    UnalignedGatedConfig,
    (Field("{operands.dtype}"), Field("{epilogue.result}")),
    aliases={"gatedint8unaligned": Former(only=_OF_S8)},
)

PARTS_GRAMMAR = Grammar(
    GatedPartsConfig,
    (
        Field("{operands.dtype}"),
        Field("{epilogue.result}"),
        Field("group{operands.group_size}", default=0),
        mark("rows", "operands.rows_scaled"),
        mark("experts", "operands.by_expert"),
    ),
)


def _ops(config: AnyConfig) -> tuple[str, ...]:
    if config.operands.indexed:
        return (GROUPED_MM_ACT_QUANT.name,)
    return EXPERT_NAMES if config.operands.by_expert else (SCALED_MM_ACT_QUANT.name,)


def _host_facts(config: GatedConfig) -> dict[str, int | str]:
    """The fields of `GatedFacts`."""
    facts = Facts(config)
    of_rows = {"store_rows": facts.store_rows, "indexed": int(facts.indexed), "biased": 0}
    own = {"by_expert": int(facts.by_expert), "grouped": int(facts.grouped), "result_group": facts.result_group}
    return {**host_facts(facts, facts.result.dtype), **of_rows, **own}


def _shared_bytes(config: GatedConfig) -> int:
    facts = Facts(config)
    words = table_words(facts) if facts.by_expert else 0
    maxima = max(facts.maximum_words, 4)
    return shared_bytes(facts, result_bytes=facts.result_bytes, table_words=words, more_words=maxima)


GATED = Kernels(
    tag=GatedConfig.tag,
    doc="GEMMs with an activation of gates as epilogue, in CuTe DSL, on Hopper",
    grammar=GRAMMAR,
    ops=_ops,
    rules=RULES,
    spell=of_dsl(_ENTRY),
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=64,
    dsl=DslBody(
        entry=_ENTRY,
        arguments="gemmill_gated_mm_args",
        facts=Plan,
        host=HostCode(
            header="gated_mm/driver_call.h",
            struct="GatedFacts",
            facts=_host_facts,
            threads=lambda config: Facts(config).threads,
            shared_bytes=_shared_bytes,
        ),
    ),
)
UNALIGNED = Kernels(
    tag=UnalignedGatedConfig.tag,
    doc="GEMMs with an activation of gates as epilogue, however operands lie, on Hopper",
    grammar=UNALIGNED_GRAMMAR,
    ops=_ops,
    rules=UNALIGNED_RULES,
    spell=spell_unaligned,
    seconds=lambda _: _NVCC_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=8,
)
PARTS = Kernels(
    tag=GatedPartsConfig.tag,
    doc="gated GEMMs that run a plain GEMM, then the activation of what it stored, on Hopper",
    grammar=PARTS_GRAMMAR,
    ops=_ops,
    rules=PARTS_RULES,
    spell=spell_parts,
    seconds=lambda _: _PARTS_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=16,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies by gates and ups, and ends with their activation",
    asks=OPS,
    kernels=(GATED, UNALIGNED, PARTS),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
