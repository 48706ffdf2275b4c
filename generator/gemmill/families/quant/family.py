"""The declaration of the quantisation kernels."""

from dataclasses import fields
from typing import Any

from gemmill.families.quant import NAME, selections
from gemmill.families.quant.accepts import QuantPredicate, accepted
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import RULES, QuantConfig
from gemmill.families.quant.contract import OPS
from gemmill.families.quant.names import from_fields, to_fields
from gemmill.families.quant.questions import QUESTIONS
from gemmill.families.quant.spelling import spell
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-20: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS = 3.0, 1.0


def _filters(config: QuantConfig) -> dict[str, Any]:
    own = {field.name: getattr(config, field.name) for field in fields(config)}
    return {"scaling": own.pop("family")} | own


QUANT = Kernels(
    tag=QuantConfig.tag,
    doc="hand-written CUDA",
    config=QuantConfig,
    accepts=QuantPredicate,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=24,
)
FAMILY = Family(
    name=NAME,
    doc="quantises rows, alone or after an activation or a norm",
    asks=OPS,
    kernels=(QUANT,),
    cases="gemmill.families.quant.cases",
    serving="gemmill.families.quant.serving",
    questions=QUESTIONS,
    functions="gemmill.families.quant.functions",
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=CLASSES.tuning,
)
