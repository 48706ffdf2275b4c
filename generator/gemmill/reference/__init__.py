"""What every op computes, in plain torch, and how far a right kernel may be from it."""

from gemmill.reference.comparison import Comparison, compare_exact, compare_within
from gemmill.reference.exact import powers_of_two, small_bias, small_integers
from gemmill.reference.group_scaled_mm import groups_of
from gemmill.reference.scaled_mm import scaled_mm
from gemmill.reference.tolerance import accumulation_error, exact_scaled_mm, tolerance

__all__ = [
    "Comparison",
    "accumulation_error",
    "compare_exact",
    "compare_within",
    "exact_scaled_mm",
    "groups_of",
    "powers_of_two",
    "scaled_mm",
    "small_bias",
    "small_integers",
    "tolerance",
]
