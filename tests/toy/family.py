"""The declaration."""

from pathlib import Path

from gemmill.family import Family, Kernels
from gemmill.vocab import Compiler
from toy import NAME
from toy.config import (
    TUNING,
    ToyAccepts,
    ToyConfig,
    accepted,
    check_count,
    filters,
    from_fields,
    selected,
    spell,
    to_fields,
)
from toy.ops import OPS
from toy.questions import QUESTIONS

FAMILY = Family(
    name=NAME,
    doc="packs pages of numbers to 4 bits each",
    asks=OPS,
    kernels=(
        Kernels(
            tag=NAME,
            doc="plain loops",
            config=ToyConfig,
            accepts=ToyAccepts,
            to_fields=to_fields,
            from_fields=from_fields,
            filters=filters,
            rules=(check_count,),
            accepted=accepted,
            spell=spell,
            compiler=Compiler.NVCC,
            seconds=lambda _: 1.0,
            unit_seconds=1.0,
            unit_size=4,
        ),
    ),
    cases="toy.cases",
    serving="toy.serving",
    selections={"smoke": selected, "default": selected},
    tuning=TUNING,
    questions=QUESTIONS,
    home=Path(__file__).parent,
)
