"""What must hold at the end of a call, whatever rows of experts are multiplied by."""

from gemmill.families.moe.classes import CLASSES
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
"""What must hold for an alpha of each expert's weights, and for a bias of each of their columns, where they are given."""


def end_of(of_rows: str) -> tuple[Step, ...]:
    """The last steps of a contract: devices, overlaps and the class; `of_rows` says which rows an expert has."""
    roles = f"out a b a_scales b_scales alpha bias {of_rows} expert_map token_ids"
    return (Check(Aspect.DEVICE, roles), Check(Aspect.APART, roles), CLASSES)
