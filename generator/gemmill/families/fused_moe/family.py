"""The declaration of fused experts."""

from dataclasses import fields
from typing import Any

from gemmill.families.fused_moe import NAME, selections
from gemmill.families.fused_moe.accepts import ExpertsAccepts, PackedExpertsAccepts, accepted, accepted_packed
from gemmill.families.fused_moe.config import AnyConfig, ExpertsConfig, PackedExpertsConfig
from gemmill.families.fused_moe.names import from_fields, packed_from_fields, packed_to_fields, to_fields
from gemmill.families.fused_moe.ops import OPS
from gemmill.families.fused_moe.questions import QUESTIONS
from gemmill.families.fused_moe.rules import PACKED_RULES, RULES
from gemmill.families.fused_moe.spelling import spell, spell_packed
from gemmill.families.fused_moe.tuning import TUNING
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each variant.
_UNIT_SECONDS, _SECONDS = 6.0, 9.0
_PACKED_UNIT_SECONDS, _PACKED_SECONDS = 26.0, 9.0
"""Twice the seconds of grouped GEMMs with packed weights: an assumption."""


def _filters(config: AnyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)} | {"backend": config.backend}


FUSED = Kernels(
    tag=ExpertsConfig.tag,
    doc="fused experts in three launches, on Hopper",
    config=ExpertsConfig,
    accepts=ExpertsAccepts,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=4,
)
PACKED = Kernels(
    tag=PackedExpertsConfig.tag,
    doc="fused experts of packed 4-bit weights, on Hopper",
    config=PackedExpertsConfig,
    accepts=PackedExpertsAccepts,
    to_fields=packed_to_fields,
    from_fields=packed_from_fields,
    filters=_filters,
    rules=PACKED_RULES,
    accepted=accepted_packed,
    spell=spell_packed,
    compiler=Compiler.NVCC,
    seconds=lambda _: _PACKED_SECONDS,
    unit_seconds=_PACKED_UNIT_SECONDS,
    unit_size=5,
)
FAMILY = Family(
    name=NAME,
    doc="computes a mixture of experts, both products and all between",
    asks=OPS,
    kernels=(FUSED, PACKED),
    cases="gemmill.families.fused_moe.cases",
    serving="gemmill.families.fused_moe.serving",
    questions=QUESTIONS,
    functions="gemmill.families.fused_moe.functions",
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
