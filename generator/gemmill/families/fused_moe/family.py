"""The declaration of fused experts."""

from dataclasses import fields
from typing import Any

from gemmill.families.fused_moe import NAME, selections
from gemmill.families.fused_moe.accepts import ExpertsAccepts, accepted
from gemmill.families.fused_moe.config import ExpertsConfig
from gemmill.families.fused_moe.names import from_fields, to_fields
from gemmill.families.fused_moe.ops import OPS
from gemmill.families.fused_moe.questions import QUESTIONS
from gemmill.families.fused_moe.rules import RULES
from gemmill.families.fused_moe.spelling import spell
from gemmill.families.fused_moe.tuning import TUNING
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each variant.
_UNIT_SECONDS, _SECONDS = 6.0, 9.0


def _filters(config: ExpertsConfig) -> dict[str, Any]:
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
FAMILY = Family(
    name=NAME,
    doc="computes a mixture of experts, both products and all between",
    asks=OPS,
    kernels=(FUSED,),
    cases="gemmill.families.fused_moe.cases",
    serving="gemmill.families.fused_moe.serving",
    questions=QUESTIONS,
    functions="gemmill.families.fused_moe.functions",
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=TUNING,
)
