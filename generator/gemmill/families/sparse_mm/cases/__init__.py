"""Calls of the sparse GEMMs, for tests, fuzzing and `gemmill explain`."""

from gemmill.families.sparse_mm.cases.asked import asked
from gemmill.families.sparse_mm.cases.checked import of_config, once, sized
from gemmill.families.sparse_mm.cases.drawn import SparseJudge, drawn, is_lacking
from gemmill.numerics.cases import Cases

CASES = Cases(
    of_config=of_config, sized=sized, once=once, asked=asked, drawn=drawn, judge=SparseJudge, is_lacking=is_lacking
)
