"""What must hold at the end of a call, whatever rows of experts are multiplied by."""

from gemmill.families.moe.classes import CLASSES
from gemmill.family import Aspect, Check, Step


def end_of(of_rows: str) -> tuple[Step, ...]:
    """The last steps of a contract: devices, overlaps and the class; `of_rows` says which rows an expert has."""
    roles = f"out a b a_scales b_scales alpha bias {of_rows} expert_map token_ids"
    return (Check(Aspect.DEVICE, roles), Check(Aspect.APART, roles), CLASSES)
