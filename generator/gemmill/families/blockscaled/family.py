"""The declaration of the block-scaled GEMMs."""

from collections.abc import Callable

from gemmill.families.blockscaled import NAME, selections
from gemmill.families.blockscaled.config import FewConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, Group, ManyLoop, PackedLoop
from gemmill.families.blockscaled.ops import OPS, OPS_OF
from gemmill.families.blockscaled.questions import QUESTIONS
from gemmill.families.blockscaled.rules import FEW_RULES, MANY_RULES, PACKED_RULES, PAIR_RULES
from gemmill.families.blockscaled.spelling import spell_few, spell_many, spell_packed, spell_pair
from gemmill.families.blockscaled.tuning import TUNING
from gemmill.family import Family, Field, Former, Grammar, Kernels, Rule, Spelled, Spelling, mark
from gemmill.vocab import DType

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-22: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS, _PAIR_SECONDS = 22.0, 4.0, 60.0

_PAIR, _OUT, _SLICES = Field("{operands.pair}"), Field("{epilogue.out_dtype}"), Field("k{splits}", default=1)
_IN_ROWS, _GROUPS = mark("packed", "operands.prepacked"), mark("groups", "operands.grouped")
_ROWS, _WARPS, _STAGES = Field("t{design.tile_m}"), Field("w{design.warps}"), Field("s{design.stages}")
_PACKED = (
    _ROWS,
    Field("r{design.row_groups}w{design.k_groups}b{design.blocks}", only={"design.group": Group.WARP}),
    Field("g{design.k_groups}b{design.blocks}", only={"design.group": Group.WARPGROUP, "design.row_groups": 2}),
    _STAGES,
    _GROUPS,
    Field("{design.main_loop}", default=PackedLoop.TILE),
    _SLICES,
)
_SIDES = Spelling(
    r"[1-9]\d*(?:x[1-9]\d*)?",
    lambda tile: "x".join(map(str, dict.fromkeys(tile))),
    lambda text: (int(text.partition("x")[0]), int(text.rpartition("x")[2])),
    "{} and a number, or {}MxN",
)
"""Rows of A and of B in a tile, or one number where they are as many."""
_BY_TMA = {"design.main_loop": FewLoop.TMA, "operands.prepacked": True}
PACKED_GRAMMAR = Grammar(
    PackedConfig,
    (_PAIR, Field("{epilogue.out_dtype}", default=DType.BF16), *_PACKED),
    fixed={"operands.prepacked": True},
    aliases={"fp4fp8": Former(fields=(_PAIR, _OUT, *_PACKED))},
)
FEW_GRAMMAR = Grammar(
    FewConfig,
    (
        _PAIR,
        _OUT,
        _ROWS,
        _WARPS,
        Field("s{design.stages}", only={"design.main_loop": FewLoop.RING}),
        Field("tma{design.stages}", only={"design.main_loop": FewLoop.TMA}),
        _IN_ROWS,
        _SLICES,
    ),
    aliases={"tmafew": Former(told=_BY_TMA, fields=(_PAIR, _OUT, _ROWS, _WARPS, _STAGES, _SLICES))},
)
_AHEAD = Field("s{design.stages}", only={"design.main_loop": ManyLoop.AHEAD})
MANY_GRAMMAR = Grammar(
    ManyConfig,
    (
        _PAIR,
        _OUT,
        Field("t{design.tile_mn}", spelled={"design.tile_mn": _SIDES}),
        Field("{design.main_loop}", default=ManyLoop.PIECES),
        Field("s{design.stages}", default=0),
        _IN_ROWS,
        _GROUPS,
        _SLICES,
    ),
    aliases={
        "widenedmany": Former(
            told={"design.main_loop": ManyLoop.WORDS}, fields=(_PAIR, _OUT, Field("t{design.tile_mn}"), _AHEAD, _SLICES)
        )
    },
)
PAIR_GRAMMAR = Grammar(
    PairConfig,
    (_PAIR, _OUT, Field("t{design.tile_shape_mnk}"), Field("c{design.cluster_shape_mnk}"), Field("{design.sharing}")),
)


def _kernels(doc: str, grammar: Grammar, rules: tuple[Rule, ...], spell: Callable[..., Spelled]) -> Kernels:
    pairs = grammar is PAIR_GRAMMAR
    return Kernels(
        tag=grammar.config.tag,
        doc=doc,
        grammar=grammar,
        ops=lambda config: OPS_OF[config.pair],
        rules=rules,
        spell=spell,
        seconds=lambda _: _PAIR_SECONDS if pairs else _SECONDS,
        unit_seconds=_UNIT_SECONDS,
        unit_size=4 if pairs else 12,
    )


KERNELS = (
    _kernels(
        "packed 4-bit weights widened to bf16 or folded to e4m3 in registers, on Hopper",
        PACKED_GRAMMAR,
        PACKED_RULES,
        spell_packed,
    ),
    _kernels("few rows, codes widened to 16 bits in registers, on Hopper", FEW_GRAMMAR, FEW_RULES, spell_few),
    _kernels("codes widened to 16 bits in shared memory, on Hopper", MANY_GRAMMAR, MANY_RULES, spell_many),
    _kernels("CUTLASS's block-scaled collectives, on Blackwell", PAIR_GRAMMAR, PAIR_RULES, spell_pair),
)
FAMILY = Family(
    name=NAME,
    doc="multiplies block-scaled weights by activations, or by block-scaled codes",
    asks=OPS,
    kernels=KERNELS,
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
