"""The declaration."""

from pathlib import Path

from gemmill.family import Family, Kernels
from toy import NAME
from toy.config import GRAMMAR, TUNING, check_count, selected, spell
from toy.ops import OPS, PACK
from toy.questions import QUESTIONS

FAMILY = Family(
    name=NAME,
    doc="packs pages of numbers to 4 bits each",
    asks=OPS,
    kernels=(
        Kernels(
            tag=NAME,
            doc="plain loops",
            grammar=GRAMMAR,
            ops=lambda config: (PACK.name,),
            rules=(check_count,),
            spell=spell,
            seconds=lambda _: 1.0,
            unit_seconds=1.0,
            unit_size=4,
        ),
    ),
    package=NAME,
    has_functions=False,
    selections={"smoke": selected, "default": selected},
    tuning=TUNING,
    questions=QUESTIONS,
    home=Path(__file__).parent,
)
