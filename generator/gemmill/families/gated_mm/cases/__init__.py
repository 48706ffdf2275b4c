"""Calls of the gated GEMMs, for tests, fuzzing and `gemmill explain`."""

from gemmill.families.gated_mm.cases.asked import asked
from gemmill.families.gated_mm.cases.checked import of_config, once, sized
from gemmill.families.gated_mm.cases.drawn import drawn, is_lacking, judge
from gemmill.numerics.cases import Cases

CASES = Cases(of_config=of_config, sized=sized, once=once, asked=asked, drawn=drawn, judge=judge, is_lacking=is_lacking)
