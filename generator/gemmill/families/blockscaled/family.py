"""The declaration of the block-scaled GEMMs."""

from collections.abc import Callable

from gemmill.families.blockscaled import NAME, selections
from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PairConfig,
    TmaFewConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.ops import OPS, OPS_OF
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
from gemmill.family import Family, Field, Grammar, Kernels, Rule, Spelled, mark
from gemmill.vocab import Compiler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS, _PAIR_SECONDS = 22.0, 4.0, 60.0


_PAIR, _OUT = Field("{pair}"), Field("{out_dtype}")
_ROWS, _WARPS, _STAGES = Field("t{tile_m}"), Field("w{warps}"), Field("s{stages}")
_PACKED, _GROUPS = mark("packed", "prepacked"), mark("groups", "grouped")
_SLICES = Field("k{splits}", default=1)
_GROUP = (
    Field("r{row_groups}w{k_groups}b{blocks}", only={"group": Group.WARP}),
    Field("g{k_groups}b{blocks}", only={"group": Group.WARPGROUP, "row_groups": 2}),
)
_STAYS = mark("stays", "stays")
_SOME_STAGES = Field("s{stages}", default=0)
GRAMMARS = {
    WeightConfig: (_PAIR, _ROWS, *_GROUP, _STAGES, _STAYS, _SLICES),
    FoldedConfig: (_PAIR, _OUT, _ROWS, *_GROUP, _STAGES, _GROUPS, mark("batched", "batched"), _STAYS, _SLICES),
    WidenedConfig: (_PAIR, _OUT, Field("t{tile}"), _PACKED, _GROUPS),
    FewConfig: (_PAIR, _OUT, _ROWS, _WARPS, _SOME_STAGES, _PACKED, _SLICES),
    TmaFewConfig: (_PAIR, _OUT, _ROWS, _WARPS, _STAGES, _SLICES),
    ManyConfig: (_PAIR, _OUT, Field("t{tile_m}x{tile_n}"), _SOME_STAGES, _SLICES),
    PairConfig: (_PAIR, _OUT, Field("t{tile_shape_mnk}"), Field("c{cluster_shape_mnk}"), Field("{sharing}")),
}


def _kernels(
    config: type[AnyConfig],
    doc: str,
    rules: tuple[Rule, ...],
    spell: Callable[..., Spelled],
) -> Kernels:
    pairs = config is PairConfig
    return Kernels(
        tag=config.tag,
        doc=doc,
        grammar=Grammar(config, GRAMMARS[config]),
        ops=lambda made: OPS_OF[made.pair],
        rules=rules,
        spell=spell,
        compiler=Compiler.NVCC,
        seconds=lambda _: _PAIR_SECONDS if pairs else _SECONDS,
        unit_seconds=_UNIT_SECONDS,
        unit_size=4 if pairs else 12,
    )


KERNELS = (
    _kernels(WeightConfig, "packed 4-bit weights widened to bf16 in registers, on Hopper", RULES, spell_packed),
    _kernels(FoldedConfig, "packed 4-bit weights folded to e4m3 in registers, on Hopper", FOLDED_RULES, spell_packed),
    _kernels(
        WidenedConfig,
        "codes widened to bf16 in shared memory, on Hopper",
        WIDENED_RULES,
        spell_widened,
    ),
    _kernels(
        FewConfig,
        "few rows, codes widened to 16 bits in registers, on Hopper",
        FEW_RULES,
        spell_few,
    ),
    _kernels(
        TmaFewConfig,
        "few rows of 16-bit numbers, packed codes brought by TMA and widened in registers, on Hopper",
        TMA_FEW_RULES,
        spell_tma_few,
    ),
    _kernels(
        ManyConfig,
        "many rows, 4-bit codes of both operands widened to bf16 in shared memory, on Hopper",
        MANY_RULES,
        spell_many,
    ),
    _kernels(
        PairConfig,
        "CUTLASS's block-scaled collectives, on Blackwell",
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
