"""What must hold for a call of a quantisation op, in the order in which a call is judged."""

from fractions import Fraction

from gemmill.families.quant.classes import CLASSES, CODED
from gemmill.families.quant.config import Activation, QuantFamily, ScaleFormat, Scales
from gemmill.families.quant.layouts import group_fault, static_fault
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSet, Require, Same, Special, Step, Tensor, any_of
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import ScaleRounding

_ROLES = {
    "result": "out",
    "output_q": "out",
    "output_azp": "azp",
    "epsilon": "eps",
    "input_global_scale": "global_scale",
    "is_sf_swizzled_layout": "is_swizzled",
} | dict.fromkeys(("scale", "output_s", "output_s_packed", "out_sf", "result_block_scale"), "scales")
_LIMITS = {DType.E4M3: (-448.0, 448.0), DType.S8: (-128.0, 127.0)}
_TENSORS = "out input scales azp scale_ub weight residual global_scale"


def _op(quant: QuantOp) -> Op:
    """The op of its declaration."""
    has = frozenset(_ROLES.get(name, name) for name in quant.schema.arguments)
    fixed = {
        "scaling": list(QuantFamily).index(quant.family),
        "vllm": int(quant.vllm),
        "takes_group_shape": int("group_shape" in has),
        "packed": int(quant.is_packed),
        "chosen": list(Activation).index(quant.activations[0]),
        "scale_format": list(ScaleFormat).index(quant.scale_formats[0]),
        "is_scale_transposed": -1,
        "group_size": quant.format.group if quant.format else 0,
    }
    if quant.format:
        fixed["coded"] = CODED[quant.out_dtypes[0]]
    told = {"activation": "chosen", "scale_ue8m0": "scale_format"}
    argued = has | {told[name] for name in has & set(told)}
    return Op(
        schema=quant.schema,
        roles={name: role for name, role in _ROLES.items() if name in quant.schema.arguments},
        fixed={name: value for name, value in fixed.items() if name not in argued},
        tensors=tuple(tensor for tensor in _tensors(quant) if tensor.role in has),
        contract=(
            *(_activation(quant) if "activation" in has else ()),
            Check(Aspect.DTYPE, "input out"),
            Check(Aspect.RANK, "input out"),
            Check(Aspect.SHAPE, "input"),
            *(() if quant.format else (Let("coded", "dtype(out)"),)),
            Let("rows", "rows(input)"),
            Let("out_rows", "rows(out)"),
            *(_blocks(quant.format, has) if quant.format else ()),
            _PADDED if quant.is_packed else Check(Aspect.SHAPE, "out"),
            Check(Aspect.LAYOUT, "input out"),
            Check(Aspect.DTYPE, "scales"),
            *((Let("scale_format", "scale_ue8m0"),) if "scale_ue8m0" in has else ()),
            *_scales(quant),
            Check(Aspect.WHOLE, "azp scale_ub weight residual global_scale"),
            *_numbers(quant, has),
            Check(Aspect.DEVICE, _TENSORS),
            Check(Aspect.APART, _TENSORS),
            *((_of_vllm(quant, "azp" if "azp" in has else "0"),) if quant.vllm else ()),
            _works(quant),
            CLASSES,
        ),
    )


def _works(quant: QuantOp) -> Let:
    """Whether anything is written: scale and zero point of an empty tensor, or of a row without elements, are."""
    if quant.family.scales is Scales.OF_TENSOR:
        return Let("works", "1")
    return Let("works", "rows" if quant.family.is_per_row else "rows * hidden")


def _of_vllm(quant: QuantOp, azp: str) -> Let:
    """Whether a call's kernel is one that has vLLM's codes alone: it follows from the dtype of the codes and from `azp`."""
    e4m3 = f"dtype(out) // {DTYPE_CODES[DType.E4M3.torch_name]}"
    kinds = {(DType.E4M3, True): e4m3, (DType.S8, True): f"1 - {e4m3} - {azp}", (DType.S8, False): azp}
    alone = {(config.out_dtype, config.symmetric) for config in quant.configs(Arch.SM90A) if config.vllm}
    return Let("of_vllm", " + ".join(["0", *(f"({kinds[kind]})" for kind in kinds if kind in alone)]))


def _tensors(quant: QuantOp) -> tuple[Tensor, ...]:
    count, each = ("1", "") if quant.family.is_whole else ("rows", "row")
    scales = Tensor("scales", count, (DType.F32,), Layout.VALUES, each=each)
    azp = Tensor("azp", count, (DType.S32,), Layout.VALUES, each=each)
    if quant.family.is_grouped:
        azp = Tensor("azp", "scales", (DType.S32,), Layout.LIKE)
    if quant.format:
        scales = Tensor("scales", "scale_rows scale_columns", _BYTES[quant.format.has_global_scale], Layout.ROWS)
    if quant.is_packed:
        scales = Tensor("scales", "rows words", (DType.S32,), said="int32 (four exponents a word)")
    return (
        Tensor(
            "input",
            "... 2*hidden" if quant.is_gated else "... hidden",
            quant.in_dtypes,
            Layout.ROWS,
            said=" or ".join(dtype.torch_name for dtype in quant.in_dtypes),
            parts="gate, then up",
        ),
        Tensor("out", f"... {_packed(quant.format)}", (quant.format,), Layout.ROWS)
        if quant.format
        else Tensor("out", "... hidden", quant.out_dtypes, Layout.ROWS),
        scales,
        azp,
        Tensor("scale_ub", "1", (DType.F32,), Layout.VALUES, needs=(_BOUNDED,)),
        Tensor("weight", "hidden", Same("input"), Layout.VALUES, each="column", needs=(_VECTOR,)),
        Tensor("residual", "... hidden", Same("input"), Layout.ROWS),
        Tensor("global_scale", "1", (DType.F32,), Layout.VALUES),
    )


_BYTES = {True: (DType.U8, DType.E4M3), False: (DType.U8,)}
"""What block scales may come as, by whether they are ue4m3."""


def _packed(format: Format) -> str:
    """Bytes of a row's codes."""
    part = Fraction(format.code.bits, 8)
    times = f"{part.numerator}*" if part.numerator > 1 else ""
    return f"{times}hidden/{part.denominator}" if part != 1 else "hidden"


def _blocks(format: Format, has: frozenset[str]) -> tuple[Step, ...]:
    """The sizes of block scales, and how they are rounded."""
    group, roundings = format.group, tuple(map(str, ScaleRounding))
    rounded = (
        Require(
            f"scale_rounding in {roundings}",
            f"scale_rounding is {{scale_rounding!r}}, expected {any_of(list(map(repr, roundings)))}",
        ),
        Let("rounds_up", "1 - scale_rounding_index"),
    )
    return (
        Require(
            f"hidden % {group} == 0", f"rows of {{hidden}} values are not a multiple of {format}'s group of {group}"
        ),
        *(rounded if "scale_rounding" in has else ()),
        Let("groups", f"hidden // {group}"),
        Let("scale_rows", "is_swizzled * up(rows, 128) + (1 - is_swizzled) * rows"),
        Let("scale_columns", "is_swizzled * up(groups, 4) + (1 - is_swizzled) * groups"),
    )


_SWIZZLED = Require(
    "is_swizzled == 0 or dense(scales) == 1",
    "{scales.name} has strides {scales.strides}: swizzled scales must be contiguous",
)
_BOUNDED = Require(
    "dtype(out) == float8_e4m3fn",
    "scale_ub is given and {out.name} is int8: only scales of float8_e4m3fn have an upper bound",
)
_VECTOR = Require("rank(weight) == 1", "weight has shape {weight.shape}, expected [{hidden}]")
_PADDED = Require(
    "like(out, input, hidden) or rank(out) == 2 and size(out, 1) == hidden and size(out, 0) >= rows",
    "{out.name} is {out.shape}, expected {input.ending[hidden]} or [{rows} or more, {hidden}] for an input of {input.shape}",
)


def _activation(quant: QuantOp) -> tuple[Step, ...]:
    offered = tuple(activation.op_argument for activation in quant.activations)
    return (
        Require(
            f"activation in {offered}", f"activation is {{activation!r}}, expected {any_of(list(map(repr, offered)))}"
        ),
        Let("chosen", f"activation_index + {list(Activation).index(quant.activations[0])}"),
    )


def _scales(quant: QuantOp) -> tuple[Step, ...]:
    """Their layout."""
    if quant.family.is_given:
        return (Special("static_scales"),)
    if quant.format:
        return *(Check(aspect, "scales") for aspect in (Aspect.RANK, Aspect.SHAPE, Aspect.LAYOUT)), _SWIZZLED
    if quant.family is QuantFamily.TENSOR:
        some = "{scales.name} has shape {scales.shape}: expected one value, for the tensor, or more, of which the first is written"
        return (Require("numel(scales) >= 1", some),)
    if quant.family.is_per_row:
        return Check(Aspect.SHAPE, "scales"), Check(Aspect.LAYOUT, "scales")
    sizes = " or ".join(map(str, quant.group_sizes))
    return (
        Require(f"group_size in {quant.group_sizes}", f"group_size is {{group_size}}, expected {sizes}"),
        Require("hidden % group_size == 0", "rows of {hidden} values are not a multiple of group_size {group_size}"),
        Let("groups", "hidden // group_size"),
        Let("words", "ceil(groups, 4)" if quant.is_packed else "groups"),
        Let("scale_rows", "up(rows, 4)" if quant.is_packed else "rows"),
        Special("group_scales"),
    )


def _numbers(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    """What holds for the arguments that are no tensors."""
    low, high = _LIMITS.get(quant.out_dtypes[0], (0.0, 0.0))
    limits = tuple(
        Require(
            f"{least} == {low} and {most} == {high}",
            f"codes are to lie in [{{{least}}}, {{{most}}}], expected {[low, high]}: all that the type holds",
        )
        for least, most in (("fp8_min", "fp8_max"), ("int8_min", "int8_max"))
        if least in has
    )
    return *limits, *((Require("eps >= 0.0", "eps is {eps}, expected 0 or more"),) if "eps" in has else ())


SCHEMAS = tuple(op.schema for op in QUANT_OPS)
OPS = OpSet(ops=tuple(map(_op, QUANT_OPS)), specials={"static_scales": static_fault, "group_scales": group_fault})
