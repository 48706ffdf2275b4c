"""What `gemmill explain` asks about a quantisation op: arguments without data, from sizes and dtypes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmill.cli.exits import UsageError
from gemmill.families.quant.config import Activation, QuantFamily, ScaleFormat
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.vocab import DType

if TYPE_CHECKING:
    import torch

OP_OF = {op.name: op for op in QUANT_OPS}
_LIMITS = {"fp8_min": -448.0, "fp8_max": 448.0, "int8_min": -128.0, "int8_max": 127.0}
_OTHER_NAMES = {
    "result": "out",
    "output_q": "out",
    "scale": "scales",
    "output_s": "scales",
    "output_s_packed": "scales",
}


@dataclass(frozen=True, kw_only=True)
class QuantQuestion:
    """A call as the command line describes it; None stands for the op's first or only choice."""

    m: int
    hidden: int
    dtype: DType | None
    """Of the input."""
    out: DType | None
    """Of the codes."""
    group_size: int | None
    activation: str | None
    scale_ue8m0: bool
    m_major: bool
    """Whether scales of groups lie M-major."""
    zero_points: bool


def arguments(name: str, question: QuantQuestion) -> list[Any]:
    """The op's arguments in the schema's order, on torch's meta device. Raises UsageError for what the op does not take."""
    import torch

    from gemmill.runtime.schemas import BY_NAME

    op = OP_OF[name]
    _refuse_what_it_lacks(op, question, BY_NAME[name].arguments)
    rows, hidden = question.m, question.hidden
    width = hidden * (1 if op.activations == (Activation.NONE,) else 2)
    in_dtype, out_dtype = question.dtype or op.in_dtypes[0], question.out or op.out_dtypes[0]
    group = max(op.group_sizes) if question.group_size is None else question.group_size
    zero_points = 1 if op.family is QuantFamily.STATIC else rows
    scales = _scales(op, question, group)
    values: dict[str, Any] = _LIMITS | {
        "input": _empty(in_dtype, (rows, width)),
        "out": _empty(out_dtype, (rows, hidden)),
        "scales": scales,
        "output_azp": torch.empty_like(scales, dtype=torch.int32),
        "azp": _empty(DType.S32, (zero_points,)) if question.zero_points else None,
        "weight": _empty(in_dtype, (hidden,)),
        "activation": question.activation or op.activations[0].op_argument,
        "group_size": group,
        "eps": 1e-10,
        "epsilon": 1e-6,
        "scale_ue8m0": question.scale_ue8m0,
        "is_scale_transposed": question.m_major,
        "dummy_is_scale_transposed": question.m_major,
        "dummy_is_tma_aligned": False,
    }
    return [values.get(_OTHER_NAMES.get(name, name)) for name in BY_NAME[name].arguments]


def _refuse_what_it_lacks(op: QuantOp, question: QuantQuestion, names: tuple[str, ...]) -> None:
    asked = {
        "--group": (question.group_size is not None, "group_size"),
        "--activation": (question.activation is not None, "activation"),
        "--ue8m0": (question.scale_ue8m0, "scale_ue8m0"),
        "--azp": (question.zero_points, "azp"),
    }
    for option, (given, argument) in asked.items():
        if given and argument not in names:
            raise UsageError(f"{op.name} with {option}: it takes {', '.join(names)}")
    if question.m_major and not op.family.is_grouped:
        raise UsageError(f"{op.name} with --scales-m-major: its scales are not of groups")


def _empty(dtype: DType, shape: tuple[int, ...]) -> "torch.Tensor":
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")


def _scales(op: QuantOp, question: QuantQuestion, group: int) -> "torch.Tensor":
    if op.family in (QuantFamily.STATIC, QuantFamily.TENSOR):
        return _empty(DType.F32, (1,))
    if not op.family.is_grouped:
        return _empty(DType.F32, (question.m, 1))
    groups = question.hidden // group if group > 0 else 0
    if op.scale_formats == (ScaleFormat.PACKED_UE8M0,):
        return _empty(DType.S32, (-(-groups // 4), -(-question.m // 4) * 4)).t()[: question.m]
    return _empty(DType.F32, (groups, question.m)).t() if question.m_major else _empty(DType.F32, (question.m, groups))
