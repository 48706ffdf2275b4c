"""The declaration of the grouped GEMMs."""

from dataclasses import fields, replace
from typing import Any

from gemmill.families.moe import NAME, selections
from gemmill.families.moe.accepts import (
    BiasedGroupedAccepts,
    BiasedUnalignedGroupedAccepts,
    GroupedAccepts,
    PackedGroupedAccepts,
    UnalignedGroupedAccepts,
    accepted,
    accepted_packed,
    accepted_unaligned,
)
from gemmill.families.moe.biased_config import BiasedGroupedConfig, BiasedUnalignedGroupedConfig
from gemmill.families.moe.config import AnyConfig, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.families.moe.dsl.plan import Plan
from gemmill.families.moe.names import (
    from_fields,
    packed_from_fields,
    packed_to_fields,
    to_fields,
    unaligned_from_fields,
    unaligned_to_fields,
)
from gemmill.families.moe.ops import OPS
from gemmill.families.moe.questions import QUESTIONS
from gemmill.families.moe.rules import PACKED_RULES, RULES, UNALIGNED_RULES
from gemmill.families.moe.spelling import spell, spell_packed, spell_unaligned
from gemmill.families.moe.tuning import TUNING
from gemmill.family import DslBody, Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of CuTe DSL 4.8.1 on a 2-core x86-64 build machine, 2026-11-22: a process's import, then each variant.
_UNIT_SECONDS, _SECONDS = 2.0, 1.5
# The same of nvcc 13.
_NVCC_UNIT_SECONDS, _NVCC_SECONDS = 26.0, 4.0


def _filters(config: AnyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)} | {"backend": config.backend}


GROUPED = Kernels(
    tag=GroupedConfig.tag,
    doc="grouped GEMMs in CuTe DSL, on Hopper",
    config=GroupedConfig,
    accepts=GroupedAccepts,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.CUTEDSL,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=32,
    dsl=DslBody(entry="gemmill.families.moe.dsl.export", arguments="gemmill_grouped_mm_args", facts=Plan),
)
UNALIGNED = Kernels(
    tag=UnalignedGroupedConfig.tag,
    doc="grouped GEMMs, however operands lie, on Hopper",
    config=UnalignedGroupedConfig,
    accepts=UnalignedGroupedAccepts,
    to_fields=unaligned_to_fields,
    from_fields=unaligned_from_fields,
    filters=_filters,
    rules=UNALIGNED_RULES,
    accepted=accepted_unaligned,
    spell=spell_unaligned,
    compiler=Compiler.NVCC,
    seconds=lambda _: _NVCC_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=8,
)
PACKED = Kernels(
    tag=PackedGroupedConfig.tag,
    doc="grouped GEMMs of packed 4-bit weights, on Hopper",
    config=PackedGroupedConfig,
    accepts=PackedGroupedAccepts,
    to_fields=packed_to_fields,
    from_fields=packed_from_fields,
    filters=_filters,
    rules=PACKED_RULES,
    accepted=accepted_packed,
    spell=spell_packed,
    compiler=Compiler.NVCC,
    seconds=lambda _: _NVCC_SECONDS,
    unit_seconds=_NVCC_UNIT_SECONDS,
    unit_size=7,
)
BIASED = replace(
    GROUPED,
    tag=BiasedGroupedConfig.tag,
    doc="grouped GEMMs with alpha and bias",
    config=BiasedGroupedConfig,
    accepts=BiasedGroupedAccepts,
    dsl=DslBody(entry="gemmill.families.moe.dsl.biased_export", arguments="gemmill_grouped_mm_args", facts=Plan),
)
BIASED_UNALIGNED = replace(
    UNALIGNED,
    tag=BiasedUnalignedGroupedConfig.tag,
    doc="grouped GEMMs with alpha and bias, however operands lie, on Hopper",
    config=BiasedUnalignedGroupedConfig,
    accepts=BiasedUnalignedGroupedAccepts,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies rows of experts by their weights",
    asks=OPS,
    kernels=(GROUPED, UNALIGNED, PACKED, BIASED, BIASED_UNALIGNED),
    cases="gemmill.families.moe.cases",
    serving="gemmill.families.moe.serving",
    questions=QUESTIONS,
    functions="gemmill.families.moe.functions",
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
