"""The declaration of fused experts."""

from gemmill.families.fused_experts import NAME, selections
from gemmill.families.fused_experts.config import FP4_FORMATS, ExpertsConfig, PackedExpertsConfig
from gemmill.families.fused_experts.main_loop import ExpertLoop
from gemmill.families.fused_experts.ops import FUSED_EXPERTS, OPS
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.questions import QUESTIONS
from gemmill.families.fused_experts.rules import PACKED_RULES, RULES
from gemmill.families.fused_experts.spelling import spell, spell_packed
from gemmill.families.fused_experts.tuning import TUNING
from gemmill.family import Family, Field, Grammar, Kernels, words
from gemmill.vocab import DType

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each variant.
_UNIT_SECONDS, _SECONDS = 6.0, 9.0
_PACKED_UNIT_SECONDS, _PACKED_SECONDS = 26.0, 9.0
"""Twice the seconds of grouped GEMMs with packed weights: an assumption."""


def _without_groups(config: ExpertsConfig) -> str:
    return "rows" if config.is_coded else "plain"


_LOOP_WORDS = {ExpertLoop.GATHERED: "", ExpertLoop.WIDE: "w", ExpertLoop.PERSISTENT: "o", ExpertLoop.BOXED: "wo"}
GRAMMAR = Grammar(
    ExpertsConfig,
    (
        Field("{operands.dtype}"),
        Field("{operands.out_dtype}"),
        Field("group{operands.group_size}", default=0, instead=("rows", "plain"), which=_without_groups),
        Field(
            "t{design.tile_tokens}{design.streamed}{design.apart}",
            spelled={"design.streamed": words({False: "", True: "s"}), "design.apart": words({False: "", True: "a"})},
        ),
    ),
)
PACKED_GRAMMAR = Grammar(
    PackedExpertsConfig,
    (
        Field("{operands.format}", spelled={"operands.format": words({of: str(of) for of in FP4_FORMATS})}),
        Field("sparse{operands.sparse_group}", default=0),
        Field("{operands.activations}", default=DType.BF16),
        Field(
            "t{design.tile_tokens}{design.main_loop}",
            spelled={"design.main_loop": words(_LOOP_WORDS)},
        ),
    ),
)

FUSED = Kernels(
    tag=ExpertsConfig.tag,
    doc="fused experts in three launches, on Hopper",
    grammar=GRAMMAR,
    ops=lambda _: (FUSED_EXPERTS.name,),
    rules=RULES,
    spell=spell,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=4,
)
PACKED = Kernels(
    tag=PackedExpertsConfig.tag,
    doc="fused experts of packed 4-bit weights, on Hopper",
    grammar=PACKED_GRAMMAR,
    ops=lambda _: (FUSED_FP4_EXPERTS.name,),
    rules=PACKED_RULES,
    spell=spell_packed,
    seconds=lambda _: _PACKED_SECONDS,
    unit_seconds=_PACKED_UNIT_SECONDS,
    unit_size=5,
)
FAMILY = Family(
    name=NAME,
    doc="computes a mixture of experts, both products and all between",
    asks=OPS,
    kernels=(FUSED, PACKED),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
