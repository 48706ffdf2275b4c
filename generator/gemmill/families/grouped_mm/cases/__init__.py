"""Calls of the grouped GEMMs, for tests, verify, fuzz and tune."""

from gemmill.families.grouped_mm.cases.asked import asked
from gemmill.families.grouped_mm.cases.checked import of_config, once, sized
from gemmill.families.grouped_mm.cases.drawn import GroupedJudge, drawn, is_lacking
from gemmill.families.grouped_mm.cases.measured import GroupedMaker
from gemmill.numerics.cases import Cases

CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=GroupedJudge,
    is_lacking=is_lacking,
    measured=GroupedMaker,
)
