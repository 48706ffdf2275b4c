"""The arguments that `gemmill explain` asks about a quantisation op: without data, from sizes and options."""

from typing import Any

from gemmill.families.quant.call import OP_OF
from gemmill.families.quant.cases.calls import QuantCase
from gemmill.families.quant.config import ScaleFormat
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType

_OPTIONS = {"group": "group_size", "activation": "activation", "ue8m0": "scale_ue8m0", "azp": "azp"}
"""Options that some ops have no argument for, each with the name of that argument."""


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device. Raises ValueError for a question that the op does not accept."""
    q, declared, names = question, OP_OF[op], BY_NAME[op].arguments
    if q["hidden"] is None or q["n"] is not None or q["k"] is not None:
        raise ValueError(f"{op} wants -m and --hidden, and neither -n nor -k")
    refuse_unused(op, q)
    for option, argument in _OPTIONS.items():
        if q[option] not in (None, False) and argument not in names:
            raise ValueError(f"{op} with --{option}: it takes {', '.join(names)}")
    if q["m_major"] and not declared.scaling.is_grouped:
        raise ValueError(f"{op} with --scales-m-major: its scales are not of groups")
    case = QuantCase(
        op=op,
        rows=q["m"],
        hidden=q["hidden"],
        in_dtype=declared.in_dtypes[0] if q["dtype"] is None else DType(q["dtype"]),
        out_dtype=declared.out_dtypes[0] if q["out"] is None else DType(q["out"]),
        group_size=max(declared.group_sizes) if q["group"] is None else q["group"],
        activation=q["activation"] or declared.activations[0].op_argument,
        scale_format=ScaleFormat.POWER_OF_TWO if q["ue8m0"] else declared.scale_formats[0],
        zero_points=q["azp"] is not None,
        m_major=q["m_major"],
    )
    return case.arguments("meta")
