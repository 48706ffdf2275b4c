"""What can be wrong with a call of a quantisation op, a sentence each. The extension makes the same checks."""

from collections.abc import Iterator
from itertools import combinations

from gemmill.runtime.operands import Operand
from gemmill.runtime.quant_call import GROUP_AZP, QuantCall, group_strides, rows_of, static_scales
from gemmill.space.quant import QuantFamily, ScaleFormat
from gemmill.vocab import DType

_LIMITS = {DType.E4M3: (-448.0, 448.0), DType.S8: (-128.0, 127.0)}


def problems(call: QuantCall) -> Iterator[str]:
    """Sentences for what is wrong, the first of which is the one to say: later ones may rest on what it denies."""
    yield from _dtypes(call)
    yield from _sizes(call)
    yield from _scales(call)
    yield from _others(call)
    yield from _places(call)


def _dtypes(call: QuantCall) -> Iterator[str]:
    offered = [activation.op_argument for activation in call.op.activations]
    if call.activation_name is not None and call.activation_name not in offered:
        yield f"activation is {call.activation_name!r}, expected {', '.join(map(repr, offered[:-1]))} or {offered[-1]!r}"
    for name, operand, allowed in (
        ("input", call.input, call.op.in_dtypes),
        (call.names[0], call.out, call.op.out_dtypes),
    ):
        if operand.dtype not in [dtype.torch_name for dtype in allowed]:
            yield f"{name} is {operand.dtype}, expected {' or '.join(dtype.torch_name for dtype in allowed)}"


def _sizes(call: QuantCall) -> Iterator[str]:
    for name, operand in (("input", call.input), (call.names[0], call.out)):
        if not operand.shape:
            yield f"{name} has no dimensions, expected rows of values: [..., hidden]"
    width = call.input.shape[-1]
    if call.is_gated and width % 2:
        yield f"input is {list(call.input.shape)}: its rows hold gate, then up, so their length {width} must be even"
    expected = (*call.input.shape[:-1], call.hidden)
    padded = call.scale_format is ScaleFormat.PACKED_UE8M0
    if call.out.shape != expected and not (padded and _has_more_rows(call)):
        wanted = f"{list(expected)}{f' or [{call.rows} or more, {call.hidden}]' if padded else ''}"
        yield f"{call.names[0]} is {list(call.out.shape)}, expected {wanted} for an input of {list(call.input.shape)}"
    yield from _rows("input", call.input, written=False)
    yield from _rows(call.names[0], call.out, written=True)


def _has_more_rows(call: QuantCall) -> bool:
    """Whether the codes' rows are padded, as packed scales are."""
    return len(call.out.shape) == 2 and call.out.shape[1] == call.hidden and call.out.shape[0] >= call.rows


def _rows(name: str, operand: Operand, *, written: bool) -> Iterator[str]:
    rows = rows_of(operand)
    if rows.stride is None or rows.stride < 0:
        yield (
            f"{name} of {list(operand.shape)} has strides {list(operand.strides)}: its last stride must be 1, and its other "
            f"dimensions must follow one another at one stride; call {name}.contiguous()"
        )
    elif written and rows.rows > 1 and rows.stride < rows.columns:
        yield f"{name} has row stride {rows.stride} for rows of {rows.columns}: its rows overlap"


def _scales(call: QuantCall) -> Iterator[str]:
    name, scales = call.names[1], call.scales
    packed = call.scale_format is ScaleFormat.PACKED_UE8M0
    wanted = "int32" if packed else "float32"
    if scales.dtype != wanted:
        yield f"{name} is {scales.dtype}, expected {wanted}" + (" (four exponents a word)" if packed else "")
    match call.op.family:
        case QuantFamily.STATIC:
            yield from _static_scales(call)
        case QuantFamily.TENSOR:
            if not scales.numel:
                yield f"{name} has shape {list(scales.shape)}: expected one value, for the tensor, or more, of which the first is written"
        case QuantFamily.TOKEN | QuantFamily.RMS_TOKEN:
            yield from _values(name, scales, call.rows, "float32", "row")
        case _:
            yield from _group_scales(call)


def _static_scales(call: QuantCall) -> Iterator[str]:
    shape = call.group_shape
    if shape is not None and (len(shape) != 2 or any(n != -1 and n < 1 for n in shape)):
        yield f"group_shape is {list(shape)}: expected two sizes, of rows and columns, -1 for all"
    if static_scales(call) is not None:
        return
    found = f"{call.names[1]} has shape {list(call.scales.shape)}"
    if not call.takes_group_shape:
        yield f"{found}: expected one value, for the tensor"
    asked = "" if shape is None else f" with group_shape {list(shape)}"
    yield (
        f"{found}{asked}: expected one value; [{call.rows}] with group_shape [1, -1] or [{call.hidden}] with [-1, 1]; or "
        f"two dimensions that divide [{call.rows}, {call.hidden}] into blocks of the group shape"
    )


def _group_scales(call: QuantCall) -> Iterator[str]:
    offered = call.op.group_sizes
    if call.group_size not in offered:
        yield f"group_size is {call.group_size}, expected {' or '.join(map(str, offered))}"
    if call.hidden % call.group_size:
        yield f"rows of {call.hidden} values are not a multiple of group_size {call.group_size}"
    if group_strides(call) is not None:
        return
    found = f"{call.names[1]} has shape {list(call.scales.shape)} and strides {list(call.scales.strides)}"
    shape = f"[{call.rows}, {call.words}]"
    if call.scale_format is ScaleFormat.PACKED_UE8M0:
        yield f"{found}: expected {shape} with strides [1, {-(-call.rows // 4) * 4}] or a larger second one"
    row_major, m_major = f"strides [{call.words}, 1]", f"strides [1, {call.rows}]"
    if call.transposed is None:
        yield f"{found}: expected {shape} with {row_major} or {m_major}, or a larger row stride"
    if call.transposed:
        yield (
            f"{found} with is_scale_transposed=True: expected {shape} with {m_major}, or [{call.words}, {call.rows}] with "
            f"strides [{call.rows}, 1]"
        )
    yield f"{found} with is_scale_transposed=False: expected {shape} with {row_major} or a larger row stride"


def _values(name: str, operand: Operand, count: int, dtype: str, each: str) -> Iterator[str]:
    if operand.dtype != dtype:
        yield f"{name} is {operand.dtype}, expected {dtype}"
    if operand.numel != count:
        what = "one value" if count == 1 and not each else f"{count} values, one for each {each}"
        yield f"{name} has shape {list(operand.shape)}: expected {what}"
    expected = 1
    for size, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if operand.numel and size > 1 and stride != expected:
            yield f"{name} of {list(operand.shape)} has strides {list(operand.strides)}: its values must be contiguous"
            return
        expected *= size


def _group_azp(azp: Operand, scales_name: str, scales: Operand) -> Iterator[str]:
    if azp.dtype != "int32":
        yield f"{GROUP_AZP} is {azp.dtype}, expected int32"
    if azp.shape != scales.shape or azp.meaningful_strides != scales.meaningful_strides:
        yield (
            f"{GROUP_AZP} has shape {list(azp.shape)} and strides {list(azp.strides)}, expected those of {scales_name}: "
            f"{list(scales.shape)} and {list(scales.strides)}"
        )


def _others(call: QuantCall) -> Iterator[str]:
    if call.azp is not None and call.op.family is QuantFamily.GROUP:
        yield from _group_azp(call.azp, call.names[1], call.scales)
    elif call.azp is not None:
        one = call.op.family in (QuantFamily.STATIC, QuantFamily.TENSOR)
        yield from _values("azp", call.azp, 1 if one else call.rows, "int32", "" if one else "row")
    if call.scale_ub is not None:
        if call.out.dtype == DType.S8.torch_name:
            yield f"scale_ub is given and {call.names[0]} is int8: only scales of float8_e4m3fn have an upper bound"
        if call.scale_ub.dtype != "float32":
            yield f"scale_ub is {call.scale_ub.dtype}, expected float32"
        if call.scale_ub.numel != 1:
            yield f"scale_ub has shape {list(call.scale_ub.shape)}: expected one value"
    if call.weight is not None:
        if len(call.weight.shape) != 1:
            yield f"weight has shape {list(call.weight.shape)}, expected [{call.hidden}]"
        yield from _values("weight", call.weight, call.hidden, call.input.dtype, "column")
    if call.residual is not None:
        if call.residual.dtype != call.input.dtype:
            yield f"residual is {call.residual.dtype} and input is {call.input.dtype}: both must have one dtype"
        if call.residual.shape != call.input.shape:
            yield f"residual is {list(call.residual.shape)}, expected input's {list(call.input.shape)}"
        yield from _rows("residual", call.residual, written=True)
    if call.limits is not None and call.limits != (wanted := _LIMITS[call.op.out_dtypes[0]]):
        yield f"codes are to lie in {list(call.limits)}, expected {list(wanted)}: all that the type holds"
    if not call.epsilon >= 0.0:
        yield f"eps is {call.epsilon}, expected 0 or more"


def _places(call: QuantCall) -> Iterator[str]:
    out, scales = call.names
    writes_scales = call.op.family is not QuantFamily.STATIC
    places = [
        (out, call.out, True),
        ("input", call.input, False),
        (scales, call.scales, writes_scales),
        (GROUP_AZP if call.op.family is QuantFamily.GROUP else "azp", call.azp, writes_scales),
        ("scale_ub", call.scale_ub, False),
        ("weight", call.weight, False),
        ("residual", call.residual, True),
    ]
    given = [(name, operand, written) for name, operand, written in places if operand is not None]
    for name, operand, _ in given:
        if operand.device != call.out.device:
            yield f"{name} is on {operand.device} and {out} is on {call.out.device}: all tensors must be on one device"
    for (a_name, a, a_written), (b_name, b, b_written) in combinations(given, 2):
        if (a_written or b_written) and a.data and a.data < b.end and b.data < a.end:
            yield f"{a_name} overlaps {b_name} in memory: results would overwrite what is still to be read"
