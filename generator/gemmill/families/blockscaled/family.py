"""The declaration of the block-scaled GEMMs."""

from dataclasses import fields
from typing import Any

from gemmill.families.blockscaled import NAME, selections
from gemmill.families.blockscaled.accepts import BlockScaledAccepts, accepted
from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    ManyConfig,
    PairConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.names import (
    few_from_fields,
    few_to_fields,
    folded_from_fields,
    folded_to_fields,
    from_fields,
    many_from_fields,
    many_to_fields,
    pair_from_fields,
    pair_to_fields,
    to_fields,
    widened_from_fields,
    widened_to_fields,
)
from gemmill.families.blockscaled.ops import OPS
from gemmill.families.blockscaled.questions import QUESTIONS
from gemmill.families.blockscaled.rules import FEW_RULES, FOLDED_RULES, MANY_RULES, PAIR_RULES, RULES, WIDENED_RULES
from gemmill.families.blockscaled.spelling import spell, spell_few, spell_folded, spell_many, spell_pair, spell_widened
from gemmill.families.blockscaled.tuning import TUNING
from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS, _PAIR_SECONDS = 22.0, 4.0, 60.0


def _filters(config: AnyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


FP4_WEIGHT = Kernels(
    tag=WeightConfig.tag,
    doc="packed 4-bit weights widened to bf16 in registers, on Hopper",
    config=WeightConfig,
    accepts=BlockScaledAccepts,
    to_fields=to_fields,
    from_fields=from_fields,
    filters=_filters,
    rules=RULES,
    accepted=accepted,
    spell=spell,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=12,
)
FOLDED = Kernels(
    tag=FoldedConfig.tag,
    doc="packed 4-bit weights folded to e4m3 in registers, on Hopper",
    config=FoldedConfig,
    accepts=BlockScaledAccepts,
    to_fields=folded_to_fields,
    from_fields=folded_from_fields,
    filters=_filters,
    rules=FOLDED_RULES,
    accepted=accepted,
    spell=spell_folded,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=12,
)
PAIRS = Kernels(
    tag=PairConfig.tag,
    doc="CUTLASS's block-scaled collectives, on Blackwell",
    config=PairConfig,
    accepts=BlockScaledAccepts,
    to_fields=pair_to_fields,
    from_fields=pair_from_fields,
    filters=_filters,
    rules=PAIR_RULES,
    accepted=accepted,
    spell=spell_pair,
    compiler=Compiler.NVCC,
    seconds=lambda _: _PAIR_SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=4,
)
WIDENED = Kernels(
    tag=WidenedConfig.tag,
    doc="codes widened to bf16 in shared memory, on Hopper",
    config=WidenedConfig,
    accepts=BlockScaledAccepts,
    to_fields=widened_to_fields,
    from_fields=widened_from_fields,
    filters=_filters,
    rules=WIDENED_RULES,
    accepted=accepted,
    spell=spell_widened,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=12,
)
WIDENED_FEW = Kernels(
    tag=FewConfig.tag,
    doc="few rows, 4-bit codes of both operands widened to bf16 in registers, on Hopper",
    config=FewConfig,
    accepts=BlockScaledAccepts,
    to_fields=few_to_fields,
    from_fields=few_from_fields,
    filters=_filters,
    rules=FEW_RULES,
    accepted=accepted,
    spell=spell_few,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=12,
)
WIDENED_MANY = Kernels(
    tag=ManyConfig.tag,
    doc="many rows, 4-bit codes of both operands widened to bf16 in shared memory, on Hopper",
    config=ManyConfig,
    accepts=BlockScaledAccepts,
    to_fields=many_to_fields,
    from_fields=many_from_fields,
    filters=_filters,
    rules=MANY_RULES,
    accepted=accepted,
    spell=spell_many,
    compiler=Compiler.NVCC,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=12,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies block-scaled weights by activations, or by block-scaled codes",
    asks=OPS,
    kernels=(FP4_WEIGHT, FOLDED, WIDENED, WIDENED_FEW, WIDENED_MANY, PAIRS),
    cases="gemmill.families.blockscaled.cases",
    serving="gemmill.families.blockscaled.serving",
    questions=QUESTIONS,
    functions="gemmill.families.blockscaled.functions",
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=TUNING,
)
