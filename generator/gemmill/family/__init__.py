"""What a family of kernels is: the values by which it is declared, and that all generic code reads."""

from gemmill.family.classes import ClassAxis, Classes
from gemmill.family.declaration import Accepts, Config, DslBody, Family, Kernels, Rule, Spelled, first_rejection
from gemmill.family.judging import Judged
from gemmill.family.op import Op, OpSet
from gemmill.family.registered import Registry
from gemmill.family.schema import Kind, OpSchema, Parameter
from gemmill.family.steps import Let, Require, Special, Step, When
from gemmill.family.tuning import MOST_ALIGNED, MOST_FACTS, MOST_SIZES, ProblemCall, Reach, Row, Tuning

__all__ = [
    "MOST_ALIGNED",
    "MOST_FACTS",
    "MOST_SIZES",
    "Accepts",
    "ClassAxis",
    "Classes",
    "Config",
    "DslBody",
    "Family",
    "Judged",
    "Kernels",
    "Kind",
    "Let",
    "Op",
    "OpSchema",
    "OpSet",
    "Parameter",
    "ProblemCall",
    "Reach",
    "Registry",
    "Require",
    "Row",
    "Rule",
    "Special",
    "Spelled",
    "Step",
    "Tuning",
    "When",
    "first_rejection",
]
