"""What a family of kernels is: the values by which it is declared, and that all generic code reads."""

from gemmill.family.declaration import Accepts, Config, DslBody, Family, Kernels, Rule, Spelled, first_rejection
from gemmill.family.registered import Registry

__all__ = [
    "Accepts",
    "Config",
    "DslBody",
    "Family",
    "Kernels",
    "Registry",
    "Rule",
    "Spelled",
    "first_rejection",
]
