"""Calls of the GEMM ops, for tests, fuzzing, `gemmill explain` and measurements."""

from gemmill.families.scaled_mm.cases.asked import asked
from gemmill.families.scaled_mm.cases.checked import of_config, once, sized
from gemmill.families.scaled_mm.cases.drawn import drawn, is_lacking, judge
from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.numerics.cases import Cases

CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=judge,
    is_lacking=is_lacking,
    measured=GemmMaker,
)
