"""The declaration of the GEMMs of 2:4 sparse weights."""

from dataclasses import fields
from typing import Any

from gemmill.families.sparse_mm import NAME, selections
from gemmill.families.sparse_mm.accepts import SparseAccepts, accepted
from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.families.sparse_mm.names import from_fields, to_fields
from gemmill.families.sparse_mm.ops import OPS
from gemmill.families.sparse_mm.questions import QUESTIONS
from gemmill.families.sparse_mm.rules import RULES
from gemmill.families.sparse_mm.spelling import spell
from gemmill.families.sparse_mm.tuning import TUNING
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-23: a unit's headers and host passes, then each variant.
_UNIT_SECONDS, _SECONDS = 13.0, 43.0


def _filters(config: SparseConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)} | {"backend": config.backend}


SPARSE = Kernels(
    tag=SparseConfig.tag,
    doc="CUTLASS 3.x sparse collectives, on Hopper",
    config=SparseConfig,
    accepts=SparseAccepts,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=8,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies activations by 2:4 sparse weights",
    asks=OPS,
    kernels=(SPARSE,),
    cases="gemmill.families.sparse_mm.cases",
    serving="gemmill.families.sparse_mm.serving",
    questions=QUESTIONS,
    functions="gemmill.families.sparse_mm.functions",
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
