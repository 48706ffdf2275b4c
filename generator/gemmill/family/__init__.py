"""What a family of kernels is: the values by which it is declared, and that all generic code reads."""

from gemmill.family.declaration import Accepts, Config, DslBody, Family, Kernels, Rule, Spelled, first_rejection
from gemmill.family.registered import Registry
from gemmill.family.tuning import MOST_ALIGNED, MOST_FACTS, MOST_SIZES, ProblemCall, Reach, Row, Tuning

__all__ = [
    "MOST_ALIGNED",
    "MOST_FACTS",
    "MOST_SIZES",
    "Accepts",
    "Config",
    "DslBody",
    "Family",
    "Kernels",
    "ProblemCall",
    "Reach",
    "Registry",
    "Row",
    "Rule",
    "Spelled",
    "Tuning",
    "first_rejection",
]
