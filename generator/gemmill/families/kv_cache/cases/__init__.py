"""Calls of the compressed cache's ops, for tests, fuzzing, `gemmill explain` and measurements."""

from gemmill.families.kv_cache.cases.asked import asked
from gemmill.families.kv_cache.cases.calls import of_config, once, sized
from gemmill.families.kv_cache.cases.drawn import drawn
from gemmill.families.kv_cache.cases.judging import KvCacheJudge, limits, ranges
from gemmill.families.kv_cache.cases.measured import AttentionMaker
from gemmill.numerics.cases import Cases

LACKS = (": build ", " lacks ")
"""Words in the text of an op whose variant the build lacks."""

CASES = Cases(
    of_config=of_config,
    sized=sized,
    once=once,
    asked=asked,
    drawn=drawn,
    judge=KvCacheJudge,
    limits=limits,
    ranges=ranges,
    is_lacking=lambda _call, text: all(words in text for words in LACKS),
    measured=AttentionMaker,
)
