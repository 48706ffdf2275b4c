"""The declaration of fused experts."""

from dataclasses import fields
from typing import Any

from gemmill.families.experts import NAME, selections
from gemmill.families.experts.accepts import ExpertsAccepts, accepted
from gemmill.families.experts.config import ExpertsConfig
from gemmill.families.experts.names import from_fields, to_fields
from gemmill.families.experts.ops import OPS
from gemmill.families.experts.questions import QUESTIONS
from gemmill.families.experts.rules import RULES
from gemmill.families.experts.spelling import spell
from gemmill.families.experts.tuning import TUNING
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
    cases="gemmill.families.experts.cases",
    serving="gemmill.families.experts.serving",
    questions=QUESTIONS,
    functions="gemmill.families.experts.functions",
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=TUNING,
)
