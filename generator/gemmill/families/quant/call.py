"""A call of a quantisation op by the roles of its arguments: what the choice and the reference ask of it.

Mirrors `QuantCall` in kernels/quant/binding.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.family.operand import Call, Operand
from gemmill.family.schema import OpSchema
from gemmill.vocab import Arch, DType

OP_OF = {op.name: op for op in QUANT_OPS}
OUT_NAMES = ("result", "out", "output_q")
SCALE_NAMES = ("scale", "scales", "output_s", "output_s_packed")
_ACTIVATION_OF = {activation.op_argument: activation for activation in Activation}
GROUP_AZP = "output_azp"
"""What zero points of groups are called; others are `azp`."""
_DTYPE_OF = {dtype.torch_name: dtype for dtype in (DType.BF16, DType.F16, DType.F32, DType.E4M3, DType.S8)}


def name_of(call: Sequence[str] | Call, names: tuple[str, ...]) -> str:
    """Which of these names the call's op has."""
    return next(name for name in names if name in call)


@dataclass(frozen=True, kw_only=True)
class QuantCall:
    """One call; sizes and layouts may still be wrong."""

    op: QuantOp
    names: tuple[str, str]
    """What the op calls its codes and its scales."""
    out: Operand
    input: Operand
    scales: Operand
    azp: Operand | None
    scale_ub: Operand | None
    weight: Operand | None
    residual: Operand | None
    activation: Activation
    group_size: int
    scale_format: ScaleFormat
    transposed: bool | None
    """Whether scales are said to be M-major; None where their strides tell."""
    group_shape: tuple[int, ...] | None
    takes_group_shape: bool
    """Whether the op's given scales may belong to blocks."""
    epsilon: float
    """eps of the op: the smallest maximum, or what is added to the mean square."""

    @property
    def is_gated(self) -> bool:
        """Whether input has a gate and an up half."""
        return self.activation is not Activation.NONE

    @property
    def hidden(self) -> int:
        """Columns of the codes."""
        return self.input.shape[-1] // (2 if self.is_gated else 1)

    @property
    def rows(self) -> int:
        """Rows of input."""
        return self.input.rows

    @property
    def padded_rows(self) -> int:
        """Rows of input up to the next multiple of four, which packed scales have."""
        return -(-self.rows // 4) * 4

    @property
    def words(self) -> int:
        """Scales, or words of packed ones, of a row."""
        groups = self.hidden // self.group_size
        return -(-groups // 4) if self.scale_format is ScaleFormat.PACKED_UE8M0 else groups


def quant_call(op: OpSchema, call: Call) -> QuantCall:
    """The call by roles."""
    names = name_of(call, OUT_NAMES), name_of(call, SCALE_NAMES)
    quant = OP_OF[op.name]
    scale_format = quant.scale_formats[0]
    if call.get("scale_ue8m0"):
        scale_format = ScaleFormat.POWER_OF_TWO
    shape = call.get("group_shape")
    return QuantCall(
        op=quant,
        names=names,
        out=call[names[0]],
        input=call["input"],
        scales=call[names[1]],
        azp=call.get("azp", call.get(GROUP_AZP)),
        scale_ub=call.get("scale_ub"),
        weight=call.get("weight"),
        residual=call.get("residual"),
        activation=_ACTIVATION_OF.get(call.get("activation", ""), quant.activations[0]),
        group_size=call.get("group_size", 0),
        scale_format=scale_format,
        transposed=call.get("is_scale_transposed"),
        group_shape=None if shape is None else tuple(shape),
        takes_group_shape="group_shape" in call,
        epsilon=float(call.get("eps", call.get("epsilon")) or 0.0),
    )


def config_of(call: QuantCall, arch: Arch) -> QuantConfig:
    """The config that serves a call which has passed the checks: there is exactly one."""
    return QuantConfig(
        family=call.op.family,
        in_dtype=_DTYPE_OF[call.input.dtype],
        out_dtype=_DTYPE_OF[call.out.dtype],
        activation=call.activation,
        group_size=call.group_size,
        scale_format=call.scale_format,
        symmetric=call.azp is None,
        truncated=call.op.truncated,
        arch=arch,
    )


@dataclass(frozen=True, kw_only=True)
class StaticScales:
    """How scales that are given belong to rows and columns: each to `group` of them."""

    group: tuple[int, int]
    strides: tuple[int, int]


def static_scales(call: QuantCall) -> StaticScales | None:
    """None where the scales fit neither the codes nor the group shape."""
    scales, shape, sizes = call.scales, call.group_shape, (call.rows, call.hidden)
    if scales.numel == 1:
        return StaticScales(group=(1, 1), strides=(0, 0))
    if not call.takes_group_shape:
        return None
    if len(scales.shape) == 1 and shape in ((1, -1), (-1, 1)):
        along = 0 if shape == (1, -1) else 1
        if scales.shape[0] != sizes[along]:
            return None
        group = (1, max(sizes[1], 1)) if along == 0 else (max(sizes[0], 1), 1)
        return StaticScales(group=group, strides=(scales.strides[0], 0) if along == 0 else (0, scales.strides[0]))
    if len(scales.shape) != 2:
        return None
    if any((n > 1) if not size else (n < 1 or size % n) for n, size in zip(scales.shape, sizes, strict=True)):
        return None
    groups = tuple(size // n if size else 1 for n, size in zip(scales.shape, sizes, strict=True))
    for asked, found, n, size in zip(shape or groups, groups, scales.shape, sizes, strict=True):
        if size and asked != found and not (asked == -1 and n == 1):
            return None
    return StaticScales(group=(groups[0], groups[1]), strides=(scales.strides[0], scales.strides[1]))


def group_strides(call: QuantCall) -> tuple[int, int] | None:
    """Strides of scales by row and by group (word, if packed); None where shape or strides do not fit the call. Those that
    are never taken are made those of the layout: padding is written at the second row of the only one."""
    scales, rows, columns = call.scales, call.rows, call.words
    packed = call.scale_format is ScaleFormat.PACKED_UE8M0
    padded = call.padded_rows if packed else rows

    def fitting(m: int, g: int, m_major: bool) -> tuple[int, int] | None:
        if rows <= 1 or not columns:
            m = 1 if m_major else columns
        if columns <= 1 or not rows:
            g = padded if m_major else 1
        fits = (m == 1 and g >= padded) if m_major else (g == 1 and m >= columns)
        return (m, g) if fits else None

    if scales.shape in ((rows, columns), (*call.input.shape[:-1], columns)):
        m, g = scales.strides[0] if len(scales.shape) == 2 else scales.stride_of_rows, scales.strides[-1]
        if m is None:
            return None
        layouts = (True,) if packed else (False, True) if call.transposed is None else (call.transposed,)
        if found := next(filter(None, (fitting(m, g, m_major) for m_major in layouts)), None):
            return found
    if call.transposed and not packed and scales.shape == (columns, rows):
        return fitting(scales.strides[1], scales.strides[0], True)
    return None
