"""What must hold for a call of a quantisation op, in the order in which a call is judged."""

from collections.abc import Sequence
from itertools import combinations

from gemmill.families.quant.call import group_strides, quant_call, static_scales
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import Activation, QuantFamily, ScaleFormat
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.family import Judged, Let, Op, OpSet, Require, Special, Step, When
from gemmill.vocab import DType

_ROLES = {"result": "out", "output_q": "out", "output_azp": "azp", "epsilon": "eps"} | dict.fromkeys(
    ("scale", "output_s", "output_s_packed"), "scales"
)
_LIMITS = {DType.E4M3: (-448.0, 448.0), DType.S8: (-128.0, 127.0)}
_TENSORS = ("out", "input", "scales", "azp", "scale_ub", "weight", "residual")


def _op(quant: QuantOp) -> Op:
    """The op of its declaration."""
    has = frozenset(_ROLES.get(name, name) for name in quant.schema.arguments)
    fixed = {
        "scaling": list(QuantFamily).index(quant.family),
        "truncated": int(quant.truncated),
        "takes_group_shape": int("group_shape" in has),
    }
    if "activation" not in has:
        fixed["chosen"] = list(Activation).index(quant.activations[0])
    if "scale_ue8m0" not in has:
        fixed["scale_format"] = list(ScaleFormat).index(quant.scale_formats[0])
    if "is_scale_transposed" not in has:
        fixed["is_scale_transposed"] = -1
    contract = (*_dtypes(quant, has), *_sizes(quant), *_scales(quant, has), *_others(quant, has), *_places(quant, has))
    return Op(
        schema=quant.schema,
        roles={name: role for name, role in _ROLES.items() if name in quant.schema.arguments},
        fixed=fixed,
        contract=(*contract, CLASSES),
    )


def _among(dtypes: Sequence[DType]) -> str:
    return f"({''.join(f'{dtype.torch_name}, ' for dtype in dtypes)})"


def _dtypes(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    offered = [activation.op_argument for activation in quant.activations]
    told = f"{', '.join(map(repr, offered[:-1]))} or {offered[-1]!r}"
    activation = (
        Require(f"activation in {tuple(offered)}", f"activation is {{activation!r}}, expected {told}"),
        Let("chosen", f"activation_index + {list(Activation).index(quant.activations[0])}"),
    )
    return (
        *(activation if "activation" in has else ()),
        *(
            Require(
                f"dtype({name}) in {_among(allowed)}",
                f"{{{name}.name}} is {{{name}.dtype}}, expected {' or '.join(dtype.torch_name for dtype in allowed)}",
            )
            for name, allowed in (("input", quant.in_dtypes), ("out", quant.out_dtypes))
        ),
    )


def _sizes(quant: QuantOp) -> tuple[Step, ...]:
    gated = quant.activations[0] is not Activation.NONE
    even = Require(
        "width % 2 == 0",
        "input is {input.shape}: its rows hold gate, then up, so their length {width} must be even",
    )
    padded = quant.scale_formats == (ScaleFormat.PACKED_UE8M0,)
    same = "like(out, input, hidden)"
    more = "rank(out) == 2 and size(out, 1) == hidden and size(out, 0) >= rows"
    wanted = "{input.ending[hidden]}" + (" or [{rows} or more, {hidden}]" if padded else "")
    return (
        *(
            Require(f"rank({x}) >= 1", f"{{{x}.name}} has no dimensions, expected rows of values: [..., hidden]")
            for x in ("input", "out")
        ),
        Let("width", "size(input, -1)"),
        *((even,) if gated else ()),
        Let("hidden", "width // 2" if gated else "width"),
        Let("rows", "rows(input)"),
        Let("out_rows", "rows(out)"),
        Require(
            f"{same} or {more}" if padded else same,
            f"{{out.name}} is {{out.shape}}, expected {wanted} for an input of {{input.shape}}",
        ),
        *_rows("input"),
        *_rows("out", "out_rows", "hidden"),
    )


def _rows(name: str, rows: str = "", columns: str = "") -> tuple[Step, ...]:
    """Rows of elements beside one another at one stride; if they are written, apart."""
    apart = Require(
        f"{rows} <= 1 or {name}_stride >= {columns}",
        f"{{{name}.name}} has row stride {{{name}_stride}} for rows of {{{columns}}}: its rows overlap",
    )
    return (
        Let(f"{name}_stride", f"row_stride({name})"),
        Require(
            f"{name}_stride >= 0",
            f"{{{name}.name}} of {{{name}.shape}} has strides {{{name}.strides}}: its last stride must be 1, and its other "
            f"dimensions must follow one another at one stride; call {{{name}.name}}.contiguous()",
        ),
        *((apart,) if rows else ()),
    )


def _scales(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    packed = quant.scale_formats == (ScaleFormat.PACKED_UE8M0,)
    wanted = "int32" if packed else "float32"
    dtype = Require(
        f"dtype(scales) == {wanted}",
        f"{{scales.name}} is {{scales.dtype}}, expected {wanted}{' (four exponents a word)' if packed else ''}",
    )
    format_told = (Let("scale_format", "scale_ue8m0"),) if "scale_ue8m0" in has else ()
    match quant.family:
        case QuantFamily.STATIC:
            layout: tuple[Step, ...] = (Special("static_scales"),)
        case QuantFamily.TENSOR:
            some = "{scales.name} has shape {scales.shape}: expected one value, for the tensor, or more, of which the first is written"
            layout = (Require("numel(scales) >= 1", some),)
        case QuantFamily.TOKEN | QuantFamily.RMS_TOKEN:
            layout = _values("scales", "rows", "float32", each="row")
        case _:
            sizes = quant.group_sizes
            layout = (
                Require(
                    f"group_size in {sizes}", f"group_size is {{group_size}}, expected {' or '.join(map(str, sizes))}"
                ),
                Require(
                    "hidden % group_size == 0",
                    "rows of {hidden} values are not a multiple of group_size {group_size}",
                ),
                Let("groups", "hidden // group_size"),
                Let("words", "ceil(groups, 4)" if packed else "groups"),
                Let("scale_rows", "ceil(rows, 4) * 4"),
                Special("group_scales"),
            )
    return dtype, *format_told, *layout


def _values(name: str, count: str, dtype: str, *, each: str = "", expected: str = "") -> tuple[Step, ...]:
    what = f"{{{count}}} values, one for each {each}" if each else "one value"
    return (
        Require(f"dtype({name}) == {dtype}", f"{{{name}.name}} is {{{name}.dtype}}, expected {expected or dtype}"),
        Require(f"numel({name}) == {count}", f"{{{name}.name}} has shape {{{name}.shape}}: expected {what}"),
        Require(
            f"dense({name}) == 1",
            f"{{{name}.name}} of {{{name}.shape}} has strides {{{name}.strides}}: its values must be contiguous",
        ),
    )


def _others(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    of_tensor = quant.family in (QuantFamily.STATIC, QuantFamily.TENSOR)
    if quant.family is QuantFamily.GROUP:
        azp = _group_azp()
    elif of_tensor:
        azp = _values("azp", "1", "int32")
    else:
        azp = _values("azp", "rows", "int32", each="row")
    steps: list[Step] = [When("azp", azp)] if "azp" in has else []
    if "scale_ub" in has:
        steps.append(When("scale_ub", _SCALE_UB))
    if "weight" in has:
        vector = Require("rank(weight) == 1", "weight has shape {weight.shape}, expected [{hidden}]")
        steps += [
            vector,
            *_values("weight", "hidden", "dtype(input)", each="column", expected="{input.dtype}"),
        ]
    if "residual" in has:
        steps.append(When("residual", _RESIDUAL))
    for least, most in (("fp8_min", "fp8_max"), ("int8_min", "int8_max")):
        if least in has:
            limits = _LIMITS[quant.out_dtypes[0]]
            say = f"codes are to lie in [{{{least}}}, {{{most}}}], expected {list(limits)}: all that the type holds"
            steps.append(Require(f"{least} == {limits[0]} and {most} == {limits[1]}", say))
    if "eps" in has:
        steps.append(Require("eps >= 0.0", "eps is {eps}, expected 0 or more"))
    return tuple(steps)


def _group_azp() -> tuple[Step, ...]:
    return (
        Require("dtype(azp) == int32", "{azp.name} is {azp.dtype}, expected int32"),
        Require(
            "rank(azp) == rank(scales) and like(azp, scales, size(scales, -1)) and strides(azp, scales)",
            "{azp.name} has shape {azp.shape} and strides {azp.strides}, expected those of {scales.name}: {scales.shape} and "
            "{scales.strides}",
        ),
    )


_SCALE_UB = (
    Require(
        "dtype(out) == float8_e4m3fn",
        "scale_ub is given and {out.name} is int8: only scales of float8_e4m3fn have an upper bound",
    ),
    Require("dtype(scale_ub) == float32", "scale_ub is {scale_ub.dtype}, expected float32"),
    Require("numel(scale_ub) == 1", "scale_ub has shape {scale_ub.shape}: expected one value"),
)
_RESIDUAL = (
    Require(
        "dtype(residual) == dtype(input)",
        "residual is {residual.dtype} and input is {input.dtype}: both must have one dtype",
    ),
    Require("like(residual, input, width)", "residual is {residual.shape}, expected input's {input.shape}"),
    *_rows("residual", "rows", "width"),
)


def _places(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    given = [name for name in _TENSORS if name in has]
    written = {"out", "residual", *(("scales", "azp") if quant.family is not QuantFamily.STATIC else ())}
    together = (
        Require(
            f"together({name}, out)",
            f"{{{name}.name}} is on {{{name}.device}} and {{out.name}} is on {{out.device}}: all tensors must be on one device",
        )
        for name in given[1:]
    )
    apart = (
        Require(
            f"apart({x}, {y})",
            f"{{{x}.name}} overlaps {{{y}.name}} in memory: results would overwrite what is still to be read",
        )
        for x, y in combinations(given, 2)
        if written & {x, y}
    )
    return (*together, *apart)


def _static_fault(judged: Judged) -> str | None:
    call = quant_call(judged.schema, judged.call)
    shape = call.group_shape
    if shape is not None and (len(shape) != 2 or any(n != -1 and n < 1 for n in shape)):
        return f"group_shape is {list(shape)}: expected two sizes, of rows and columns, -1 for all"
    if static_scales(call) is not None:
        return None
    found = f"{call.names[1]} has shape {list(call.scales.shape)}"
    if not call.takes_group_shape:
        return f"{found}: expected one value, for the tensor"
    asked = "" if shape is None else f" with group_shape {list(shape)}"
    return (
        f"{found}{asked}: expected one value; [{call.rows}] with group_shape [1, -1] or [{call.hidden}] with [-1, 1]; or "
        f"two dimensions that divide [{call.rows}, {call.hidden}] into blocks of the group shape"
    )


def _group_fault(judged: Judged) -> str | None:
    call = quant_call(judged.schema, judged.call)
    if group_strides(call) is not None:
        return None
    found = f"{call.names[1]} has shape {list(call.scales.shape)} and strides {list(call.scales.strides)}"
    shape = f"[{call.rows}, {call.words}]"
    if call.scale_format is ScaleFormat.PACKED_UE8M0:
        return f"{found}: expected {shape} with strides [1, {call.padded_rows}] or a larger second one"
    row_major, m_major = f"strides [{call.words}, 1]", f"strides [1, {call.rows}]"
    if call.transposed is None:
        return f"{found}: expected {shape} with {row_major} or {m_major}, or a larger row stride"
    if call.transposed:
        return (
            f"{found} with is_scale_transposed=True: expected {shape} with {m_major}, or [{call.words}, {call.rows}] with "
            f"strides [{call.rows}, 1]"
        )
    return f"{found} with is_scale_transposed=False: expected {shape} with {row_major} or a larger row stride"


SCHEMAS = tuple(op.schema for op in QUANT_OPS)
OPS = OpSet(ops=tuple(map(_op, QUANT_OPS)), specials={"static_scales": _static_fault, "group_scales": _group_fault})
