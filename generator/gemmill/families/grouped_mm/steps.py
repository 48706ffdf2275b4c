"""Conditions at the end of a call's contract, for any weights of its experts."""

from gemmill.families.grouped_mm.classes import CLASSES
from gemmill.family import Aspect, Check, Require, Step, When

ALPHA_AND_BIAS: tuple[Step, ...] = (
    Check(Aspect.WHOLE, "alpha"),
    When(
        "bias",
        (
            Check(Aspect.DTYPE, "bias"),
            Require(
                "rank(bias) == 2 and size(bias, 0) == weights and size(bias, 1) == N and dense(bias) == 1",
                "{bias.name} has shape {bias.shape} and strides {bias.strides}: expected [{weights}, {N}], contiguous",
            ),
        ),
    ),
)
"""Conditions on an alpha of each expert's weights, and on a bias of each of their columns, in calls that have them."""


def end_of(of_rows: str) -> tuple[Step, ...]:
    """The last steps of a contract: devices, overlaps and the class; `of_rows` says which rows an expert has."""
    roles = f"out a b a_scales b_scales alpha bias {of_rows} expert_map token_ids"
    return (Check(Aspect.DEVICE, roles), Check(Aspect.APART, roles), CLASSES)
