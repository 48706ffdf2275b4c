"""The declaration of the gated GEMMs."""

from dataclasses import fields, replace
from typing import Any

from gemmill.families.gated_mm import NAME, selections
from gemmill.families.gated_mm.accepts import (
    GatedAccepts,
    GroupGatedAccepts,
    UnalignedGatedAccepts,
    accepted,
    accepted_in_groups,
    accepted_unaligned,
)
from gemmill.families.gated_mm.config import (
    AnyConfig,
    ExpertGatedConfig,
    ExpertGroupGatedConfig,
    GatedConfig,
    GatheredGatedConfig,
    GatheredGroupGatedConfig,
    GroupGatedConfig,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.int8_config import (
    Int8ExpertGatedConfig,
    Int8GatedConfig,
    Int8GatheredGatedConfig,
    Int8UnalignedGatedConfig,
)
from gemmill.families.gated_mm.names import from_fields, to_fields, unaligned_from_fields, unaligned_to_fields
from gemmill.families.gated_mm.ops import OPS
from gemmill.families.gated_mm.questions import QUESTIONS
from gemmill.families.gated_mm.rules import RULES, UNALIGNED_RULES
from gemmill.families.gated_mm.spelling import spell, spell_unaligned
from gemmill.families.gated_mm.tuning import TUNING
from gemmill.family import DslBody, Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of CuTe DSL 4.8.1 on a 2-core x86-64 build machine, 2026-11-22: a process's import, then each variant.
_UNIT_SECONDS, _SECONDS = 2.0, 3.0
# The same of nvcc 13.
_NVCC_UNIT_SECONDS, _NVCC_SECONDS = 26.0, 4.0


def _filters(config: AnyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)} | {"backend": config.backend}


GATED = Kernels(
    tag=GatedConfig.tag,
    doc="GEMMs that end with the activation of gates, in CuTe DSL, on Hopper",
    config=GatedConfig,
    accepts=GatedAccepts,
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
    dsl=DslBody(entry="gemmill.families.gated_mm.dsl.export", arguments="gemmill_gated_mm_args", facts=Plan),
)
IN_GROUPS = replace(
    GATED,
    tag=GroupGatedConfig.tag,
    doc="the same of operands whose scales are in groups along K",
    config=GroupGatedConfig,
    accepts=GroupGatedAccepts,
    accepted=accepted_in_groups,
)
OF_EXPERTS = replace(
    GATED,
    tag=ExpertGatedConfig.tag,
    doc="the same of rows that belong to experts",
    config=ExpertGatedConfig,
)
OF_EXPERTS_IN_GROUPS = replace(
    IN_GROUPS,
    tag=ExpertGroupGatedConfig.tag,
    doc="both: rows of experts, and scales of operands in groups along K",
    config=ExpertGroupGatedConfig,
)
GATHERED = replace(
    OF_EXPERTS,
    tag=GatheredGatedConfig.tag,
    doc="the same of rows of experts that are gathered by their numbers",
    config=GatheredGatedConfig,
)
GATHERED_IN_GROUPS = replace(
    OF_EXPERTS_IN_GROUPS,
    tag=GatheredGroupGatedConfig.tag,
    doc="both: gathered rows, and scales of operands in groups along K",
    config=GatheredGroupGatedConfig,
)
UNALIGNED = Kernels(
    tag=UnalignedGatedConfig.tag,
    doc="GEMMs that end with the activation of gates, however operands lie, on Hopper",
    config=UnalignedGatedConfig,
    accepts=UnalignedGatedAccepts,
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
OF_INT8 = (
    replace(
        GATED, tag=Int8GatedConfig.tag, doc="GEMMs of s8 that end with the activation of gates", config=Int8GatedConfig
    ),
    replace(
        OF_EXPERTS,
        tag=Int8ExpertGatedConfig.tag,
        doc="the same of s8, of rows that belong to experts",
        config=Int8ExpertGatedConfig,
    ),
    replace(
        GATHERED,
        tag=Int8GatheredGatedConfig.tag,
        doc="the same of s8, of rows of experts that are gathered by their numbers",
        config=Int8GatheredGatedConfig,
    ),
    replace(
        UNALIGNED,
        tag=Int8UnalignedGatedConfig.tag,
        doc="GEMMs of s8 that end with the activation of gates, however operands lie, on Hopper",
        config=Int8UnalignedGatedConfig,
    ),
)
FAMILY = Family(
    name=NAME,
    doc="multiplies by gates and ups, and ends with their activation",
    asks=OPS,
    kernels=(GATED, IN_GROUPS, OF_EXPERTS, OF_EXPERTS_IN_GROUPS, GATHERED, GATHERED_IN_GROUPS, UNALIGNED, *OF_INT8),
    cases="gemmill.families.gated_mm.cases",
    serving="gemmill.families.gated_mm.serving",
    questions=QUESTIONS,
    functions="gemmill.families.gated_mm.functions",
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
