"""The declaration of the block-scaled GEMMs."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from gemmill.families.blockscaled import NAME, names, selections
from gemmill.families.blockscaled.accepts import BlockScaledAccepts, accepted
from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    ManyConfig,
    PackedConfig,
    PairConfig,
    TmaFewConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.ops import OPS
from gemmill.families.blockscaled.questions import QUESTIONS
from gemmill.families.blockscaled.rules import (
    FEW_RULES,
    FOLDED_RULES,
    MANY_RULES,
    PAIR_RULES,
    RULES,
    TMA_FEW_RULES,
    WIDENED_RULES,
)
from gemmill.families.blockscaled.spelling import (
    spell_few,
    spell_many,
    spell_packed,
    spell_pair,
    spell_tma_few,
    spell_widened,
)
from gemmill.families.blockscaled.tuning import TUNING
from gemmill.family import Family, Kernels, Rule, Spelled
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS, _PAIR_SECONDS = 22.0, 4.0, 60.0


def _filters(config: AnyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _kernels(
    config: type[AnyConfig],
    doc: str,
    to_and_from: tuple[Callable[..., list[str]], Callable[..., AnyConfig | PackedConfig]],
    rules: tuple[Rule, ...],
    spell: Callable[..., Spelled],
) -> Kernels:
    pairs = config is PairConfig
    return Kernels(
        tag=config.tag,
        doc=doc,
        config=config,
        accepts=BlockScaledAccepts,
        to_fields=to_and_from[0],
        from_fields=to_and_from[1],
        filters=_filters,
        rules=rules,
        accepted=accepted,
        spell=spell,
        compiler=Compiler.NVCC,
        seconds=lambda _: _PAIR_SECONDS if pairs else _SECONDS,
        unit_seconds=_UNIT_SECONDS,
        unit_size=4 if pairs else 12,
    )


_PACKED = names.packed_to_fields, names.packed_from_fields
KERNELS = (
    _kernels(
        WeightConfig, "packed 4-bit weights widened to bf16 in registers, on Hopper", _PACKED, RULES, spell_packed
    ),
    _kernels(
        FoldedConfig, "packed 4-bit weights folded to e4m3 in registers, on Hopper", _PACKED, FOLDED_RULES, spell_packed
    ),
    _kernels(
        WidenedConfig,
        "codes widened to bf16 in shared memory, on Hopper",
        (names.widened_to_fields, names.widened_from_fields),
        WIDENED_RULES,
        spell_widened,
    ),
    _kernels(
        FewConfig,
        "few rows, codes widened to 16 bits in registers, on Hopper",
        (names.few_to_fields, names.few_from_fields),
        FEW_RULES,
        spell_few,
    ),
    _kernels(
        TmaFewConfig,
        "few rows of 16-bit numbers, packed codes brought by TMA and widened in registers, on Hopper",
        (names.tma_few_to_fields, names.tma_few_from_fields),
        TMA_FEW_RULES,
        spell_tma_few,
    ),
    _kernels(
        ManyConfig,
        "many rows, 4-bit codes of both operands widened to bf16 in shared memory, on Hopper",
        (names.many_to_fields, names.many_from_fields),
        MANY_RULES,
        spell_many,
    ),
    _kernels(
        PairConfig,
        "CUTLASS's block-scaled collectives, on Blackwell",
        (names.pair_to_fields, names.pair_from_fields),
        PAIR_RULES,
        spell_pair,
    ),
)
FAMILY = Family(
    name=NAME,
    doc="multiplies block-scaled weights by activations, or by block-scaled codes",
    asks=OPS,
    kernels=KERNELS,
    cases="gemmill.families.blockscaled.cases",
    serving="gemmill.families.blockscaled.serving",
    questions=QUESTIONS,
    functions="gemmill.families.blockscaled.functions",
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
