"""Calls of fused experts, for tests, verify, fuzz and tune."""

from gemmill.families.fused_experts.cases.asked import asked
from gemmill.families.fused_experts.cases.checked import of_config, once, sized
from gemmill.families.fused_experts.cases.drawn import ExpertsJudge, drawn, is_lacking
from gemmill.numerics.cases import Cases

CASES = Cases(
    of_config=of_config, sized=sized, once=once, asked=asked, drawn=drawn, judge=ExpertsJudge, is_lacking=is_lacking
)
