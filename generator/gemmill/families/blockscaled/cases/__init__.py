"""Calls of the block-scaled GEMMs, for tests, verify, fuzz and tune."""

from gemmill.families.blockscaled.cases.asked import asked
from gemmill.families.blockscaled.cases.checked import of_config, once, sized
from gemmill.families.blockscaled.cases.drawn import BlockScaledJudge, drawn, is_lacking
from gemmill.families.blockscaled.cases.measured import BlockScaledMaker
from gemmill.numerics.cases import Cases

CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=BlockScaledJudge,
    is_lacking=is_lacking,
    measured=BlockScaledMaker,
)
