"""The declaration of the grouped GEMMs."""

from gemmill.families.grouped_mm import NAME, selections
from gemmill.families.grouped_mm.config import (
    FP4_FORMATS,
    AnyConfig,
    GroupedConfig,
    PackedGroupedConfig,
    UnalignedGroupedConfig,
    UnpackedConfig,
)
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.facts import Facts
from gemmill.families.grouped_mm.ops import GROUPED_MM, NAMES, OPS
from gemmill.families.grouped_mm.packed_ops import FP4_NAMES
from gemmill.families.grouped_mm.questions import QUESTIONS
from gemmill.families.grouped_mm.rules import PACKED_RULES, RULES, UNALIGNED_RULES
from gemmill.families.grouped_mm.spelling import spell_packed, spell_unaligned
from gemmill.families.grouped_mm.tuning import TUNING
from gemmill.family import DslBody, Family, Field, Former, Grammar, HostCode, Kernels, mark, of_dsl, words
from gemmill.gemm.host import host_facts, shared_bytes, table_words

# CPU seconds of CuTe DSL 4.8.1 on a 2-core x86-64 build machine, 2026-11-22: a process's import, then each variant.
_UNIT_SECONDS, _SECONDS = 2.0, 1.5
# The same of nvcc 13.
_NVCC_UNIT_SECONDS, _NVCC_SECONDS = 26.0, 4.0
_ENTRY = "gemmill.families.grouped_mm.dsl.export"


def _without_groups(config: UnpackedConfig) -> str:
    return "channel" if config.operands.scaled else "plain"


_OPERANDS = (
    Field("{operands.dtype}"),
    Field("{operands.out_dtype}"),
    Field("group{operands.group_size}", default=0, instead=("channel", "plain"), which=_without_groups),
    mark("rows", "operands.rows_scaled"),
)
_BIASED = mark("bias", "epilogue.biased")
_FORMER_BIASED = Former(told={"epilogue.biased": True})
GRAMMAR = Grammar(
    GroupedConfig,
    (
        *_OPERANDS,
        mark("indexed", "operands.indexed"),
        _BIASED,
        Field("t{design.tile_shape_mnk}"),
        Field("c{design.cluster_shape_mnk}"),
        Field("{design.kernel_schedule}"),
        Field("{design.accumulation}"),
        Field("{design.swap_ab}", spelled={"design.swap_ab": words({False: "ab", True: "swapab"})}),
        Field("s{design.stages}"),
    ),
    aliases={"groupedbiasmm": _FORMER_BIASED},
)
UNALIGNED_GRAMMAR = Grammar(
    UnalignedGroupedConfig, (*_OPERANDS, _BIASED), aliases={"groupedbiasunaligned": _FORMER_BIASED}
)
PACKED_GRAMMAR = Grammar(
    PackedGroupedConfig,
    (
        Field("{dtype}"),
        Field("{format}", spelled={"format": words({format: str(format) for format in FP4_FORMATS})}),
        Field("{out_dtype}"),
        Field("t{tile_m}x{tile_n}"),
        Field("s{stages}"),
    ),
)


def _ops(config: AnyConfig) -> tuple[str, ...]:
    if isinstance(config, PackedGroupedConfig):
        return FP4_NAMES
    return NAMES if False in config.gathers else (GROUPED_MM.name,)


def _host_facts(config: GroupedConfig) -> dict[str, int | str]:
    """The fields of `ExpertFacts`."""
    facts = Facts(config)
    of_rows = {"store_rows": 0, "indexed": int(facts.indexed), "biased": int(facts.biased)}
    return {**host_facts(facts, config.out_dtype), **of_rows}


GROUPED = Kernels(
    tag=GroupedConfig.tag,
    doc="grouped GEMMs in CuTe DSL, on Hopper",
    grammar=GRAMMAR,
    ops=_ops,
    rules=RULES,
    spell=of_dsl(_ENTRY),
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=64,
    dsl=DslBody(
        entry=_ENTRY,
        arguments="gemmill_grouped_mm_args",
        facts=Plan,
        host=HostCode(
            header="grouped_mm/driver_call.h",
            struct="ExpertFacts",
            facts=_host_facts,
            threads=lambda config: Facts(config).threads,
            shared_bytes=lambda config: shared_bytes(Facts(config), table_words=table_words(Facts(config))),
        ),
    ),
)
UNALIGNED = Kernels(
    tag=UnalignedGroupedConfig.tag,
    doc="grouped GEMMs, however operands lie, on Hopper",
    grammar=UNALIGNED_GRAMMAR,
    ops=_ops,
    rules=UNALIGNED_RULES,
    spell=spell_unaligned,
    seconds=lambda _: _NVCC_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=8,
)
PACKED = Kernels(
    tag=PackedGroupedConfig.tag,
    doc="grouped GEMMs of packed 4-bit weights, on Hopper",
    grammar=PACKED_GRAMMAR,
    ops=_ops,
    rules=PACKED_RULES,
    spell=spell_packed,
    seconds=lambda _: _NVCC_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=7,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies rows of experts by their weights",
    asks=OPS,
    kernels=(GROUPED, UNALIGNED, PACKED),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
