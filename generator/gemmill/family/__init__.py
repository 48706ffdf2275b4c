"""What a family of kernels is: the values by which it is declared, and that all generic code reads."""

from gemmill.family.declaration import Accepts, Config, DslBody, Family, Kernels, Rule, Spelled, first_rejection
from gemmill.family.judging import Judged
from gemmill.family.op import Op, OpSet
from gemmill.family.registered import Registry
from gemmill.family.schema import Kind, OpSchema, Parameter
from gemmill.family.steps import Let, Require, Special, Step, When

__all__ = [
    "Accepts",
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
    "Registry",
    "Require",
    "Rule",
    "Special",
    "Spelled",
    "Step",
    "When",
    "first_rejection",
]
