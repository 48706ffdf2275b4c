"""The contract of a quantisation op's call, in the order of the checks."""

from collections.abc import Iterator
from fractions import Fraction

from gemmill.families.quant.classes import CLASSES, CODED
from gemmill.families.quant.config import Activation, ScaleFormat, Scales, Scaling
from gemmill.families.quant.layouts import group_fault, static_fault
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSet, Require, Same, Special, Step, Tensor, any_of
from gemmill.family.operand import DTYPE_CODES, MOST_OF_TMA
from gemmill.family.tensor import torch_names
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import ScaleRounding

_ROLES = {
    "result": "out",
    "output_q": "out",
    "output": "out",
    "output_azp": "azp",
    "input_offset_by_experts": "expert_offsets",
    "output_scale_offset_by_experts": "scale_offsets",
    "epsilon": "eps",
    "input_global_scale": "global_scale",
    "is_sf_swizzled_layout": "is_swizzled",
} | dict.fromkeys(
    ("scale", "output_s", "output_s_packed", "out_sf", "result_block_scale", "output_scale", "input_sf"), "scales"
)
_LIMITS = {DType.E4M3: (-448.0, 448.0), DType.S8: (-128.0, 127.0)}
_TENSORS = "out input scales azp scale_ub weight residual global_scale mod_scale mod_shift expert_offsets scale_offsets row_sums"
_MODULATION = ("mod_scale", "mod_shift")


def _op(quant: QuantOp) -> Op:
    """The op of its declaration."""
    if quant.format and quant.scaling is Scaling.WEIGHT_DEQUANT:
        return _of_packed_weights(quant, quant.format)
    has = frozenset(_ROLES.get(name, name) for name in quant.schema.arguments)
    fixed = {
        "scaling": list(Scaling).index(quant.scaling),
        "vllm": int(quant.vllm),
        "takes_group_shape": int("group_shape" in has),
        "packed": int(quant.is_packed),
        "chosen": list(Activation).index(quant.activations[0]),
        "scale_format": list(ScaleFormat).index(quant.scale_formats[0]),
        "is_scale_transposed": -1,
        "group_size": quant.format.group if quant.format else 0,
    }
    if quant.format:
        fixed |= {"coded": CODED[quant.out_dtypes[0]], "built_group": quant.format.group}
    if quant.scaling is Scaling.EXPERTS:
        fixed["is_swizzled"] = 1
    told = {"activation": "chosen", "approximate": "chosen", "scale_ue8m0": "scale_format"}
    argued = has | {told[name] for name in has & set(told)}
    return Op(
        schema=quant.schema,
        roles={name: role for name, role in _ROLES.items() if name in quant.schema.arguments},
        fixed={name: value for name, value in fixed.items() if name not in argued},
        tensors=tuple(tensor for tensor in _tensors(quant) if tensor.role in has),
        contract=(
            *(_activation(quant) if "activation" in has else ()),
            *(
                (Let("chosen", f"{list(Activation).index(quant.activations[-1])} - approximate"),)
                if "approximate" in has
                else ()
            ),
            Check(Aspect.DTYPE, "input out"),
            Check(Aspect.RANK, "input out"),
            Check(Aspect.SHAPE, "input"),
            *(() if quant.format else (Let("coded", "dtype(out)"),)),
            Let("valued", "dtype(out)" if quant.scaling is Scaling.DEQUANT else "dtype(input)"),
            Let("rows", "rows(input)"),
            Let("out_rows", "rows(out)"),
            *(_EXPERTS if "expert_offsets" in has else ()),
            *(_n_experts() if "n_experts" in has else ()),
            *(_blocks(quant, quant.format, has) if quant.format else ()),
            _PADDED if quant.is_packed else Check(Aspect.SHAPE, "out"),
            Check(Aspect.LAYOUT, "input out"),
            *(_modulation() if "mod_scale" in has else ()),
            Check(Aspect.DTYPE, "scales"),
            *((Let("scale_format", "scale_ue8m0"),) if "scale_ue8m0" in has else ()),
            *_scales(quant),
            Check(Aspect.WHOLE, "azp scale_ub weight residual global_scale expert_offsets scale_offsets row_sums"),
            *_numbers(quant, has),
            Check(Aspect.DEVICE, _TENSORS),
            Check(Aspect.APART, _TENSORS),
            *((_of_vllm(quant, "azp" if "azp" in has else "0"),) if quant.vllm else ()),
            _works(quant),
            CLASSES,
        ),
    )


def _of_packed_weights(quant: QuantOp, format: Format) -> Op:
    """The op of packed weights, whose blocks have codes and scales: `out` says how many rows and columns there are."""
    block_bytes = format.code_bytes(SIDE * SIDE) + format.scale_count(SIDE * SIDE)
    return Op(
        schema=quant.schema,
        roles={"blocks": "input"},
        fixed={
            "scaling": list(Scaling).index(quant.scaling),
            "vllm": 0,
            "chosen": list(Activation).index(Activation.NONE),
            "scale_format": list(ScaleFormat).index(quant.scale_formats[0]),
            "coded": CODED[quant.out_dtypes[0]],
            "built_group": format.group,
        },
        tensors=(
            Tensor("out", "rows hidden", quant.in_dtypes, Layout.ROWS),
            Tensor("input", "tiles blocks bytes", (DType.U8,), alignment=16),
        ),
        contract=(
            Check(Aspect.DTYPE, "input out"),
            Check(Aspect.RANK, "out"),
            Check(Aspect.SHAPE, "out"),
            Require(
                f"rows <= {MOST_OF_TMA} and hidden <= {MOST_OF_TMA}",
                f"{{out.name}} is {{out.shape}}: each must be at most {MOST_OF_TMA}",
            ),
            Require(
                f"hidden % {format.group} == 0",
                f"rows of {{hidden}} values are not a multiple of {format}'s group of {format.group}",
            ),
            Let("tiles", f"ceil(rows, {SIDE})"),
            Let("blocks", f"up(hidden, {STAGE_COLUMNS}) // {SIDE}"),
            Require(
                f"rank(input) == 3 and size(input, 0) == tiles and size(input, 1) == blocks and size(input, 2) == {block_bytes}",
                f"{{input.name}} is {{input.shape}}, expected [{{tiles}}, {{blocks}}, {block_bytes}] for {{rows}} x {{hidden}} "
                "weights packed by gemmill.quantize.fp4_blocks.to_blocks",
            ),
            Check(Aspect.LAYOUT, "out"),
            Require("dense(input) == 1", "{input.name} has strides {input.strides}: weights must be contiguous"),
            Check(Aspect.DEVICE, _TENSORS),
            Check(Aspect.APART, _TENSORS),
            Let("valued", "dtype(out)"),
            _works(quant),
            CLASSES,
        ),
    )


def _works(quant: QuantOp) -> Let:
    """The step that says whether anything is written. Scale and zero point of an empty tensor, or of a row without
    elements, are."""
    if quant.scaling.scales is Scales.OF_TENSOR:
        return Let("works", "1")
    return Let("works", "rows" if quant.scaling.is_per_row else "rows * hidden")


def _of_vllm(quant: QuantOp, azp: str) -> Let:
    """The step that says whether a call's kernel has vLLM's codes alone. It follows from the dtype of the codes and
    from `azp`."""
    if quant.format:
        return Let("of_vllm", "1")
    e4m3 = f"dtype(out) // {DTYPE_CODES[DType.E4M3.torch_name]}"
    kinds = {(DType.E4M3, True): e4m3, (DType.S8, True): f"1 - {e4m3} - {azp}", (DType.S8, False): azp}
    alone = {(config.out_dtype, config.symmetric) for config in quant.configs(Arch.SM90A) if config.vllm}
    return Let("of_vllm", " + ".join(["0", *(f"({kinds[kind]})" for kind in kinds if kind in alone)]))


def _tensors(quant: QuantOp) -> tuple[Tensor, ...]:
    count, each = ("1", "") if quant.scaling.is_whole else ("rows", "row")
    scales = Tensor("scales", count, (DType.F32,), Layout.VALUES, each=each)
    azp = Tensor("azp", count, (DType.S32,), Layout.VALUES, each=each)
    if quant.scaling.is_grouped:
        azp = Tensor("azp", "scales", (DType.S32,), Layout.LIKE)
    if quant.format:
        scales = Tensor("scales", "scale_rows scale_columns", _BYTES[quant.format.has_global_scale], Layout.ROWS)
    if quant.is_packed:
        scales = Tensor("scales", "rows words", (DType.S32,), said="int32 (four exponents a word)")
    return (
        *_rows(quant),
        scales,
        azp,
        Tensor("scale_ub", "1", (DType.F32,), Layout.VALUES, needs=(_BOUNDED,)),
        Tensor("weight", "hidden", Same("input"), Layout.VALUES, each="column", needs=(_VECTOR,)),
        Tensor("residual", "... hidden", Same("input"), Layout.ROWS),
        Tensor("global_scale", "1", (DType.F32,), Layout.VALUES)
        if quant.scaling is not Scaling.EXPERTS
        else Tensor("global_scale", "experts", (DType.F32,), Layout.VALUES, each="expert"),
        *(
            Tensor(role, "ends", (DType.S32,), Layout.VALUES, each="expert and one for the end")
            for role in ("expert_offsets", "scale_offsets")
        ),
        *(Tensor(role, "... hidden", Same("input")) for role in _MODULATION),
        Tensor("row_sums", "rows", (DType.S32,), Layout.VALUES, each="row"),
    )


def _rows(quant: QuantOp) -> tuple[Tensor, Tensor]:
    """The input and the output that have the same rows."""
    if quant.format and quant.scaling is Scaling.DEQUANT:
        return Tensor("input", "... of_row", (quant.format,), Layout.ROWS), Tensor(
            "out", "... hidden", quant.in_dtypes, Layout.ROWS
        )
    given = Tensor(
        "input",
        "... 2*hidden" if quant.is_gated else "... hidden",
        quant.in_dtypes,
        Layout.ROWS,
        said=" or ".join(dtype.torch_name for dtype in quant.in_dtypes),
        parts="gate, then up",
    )
    if quant.format:
        return given, Tensor("out", f"... {_packed(quant.format)}", (quant.format,), Layout.ROWS)
    return given, Tensor("out", "... hidden", quant.out_dtypes, Layout.ROWS)


_BYTES = {True: (DType.U8, DType.E4M3, DType.S32), False: (DType.U8, DType.S32)}
"""The dtypes that block scales may come as, by whether they are ue4m3. Swizzled scales may be words of four, too."""
_EXPERTS = (
    Let("ends", "numel(expert_offsets)"),
    Let("experts", "ends - 1"),
    Require(
        "experts >= 1",
        "{expert_offsets.name} has shape {expert_offsets.shape}: expected a value for each expert, and one for the end",
    ),
)


def _packed(format: Format) -> str:
    """The expression for the bytes of a row's codes."""
    part = Fraction(format.code.bits, 8)
    times = f"{part.numerator}*" if part.numerator > 1 else ""
    return f"{times}padded/{part.denominator}" if part != 1 else "padded"


def _n_experts() -> Iterator[Step]:
    yield Require(
        "n_experts == experts",
        "n_experts is {n_experts}, and {expert_offsets.name} has {ends} values: expected one more",
    )


def _blocks(quant: QuantOp, format: Format, has: frozenset[str]) -> tuple[Step, ...]:
    """Steps that name the sizes of block scales, and their rounding. Codes may have more columns than the input, which
    are zeros.
    """
    group, bits, roundings = format.group, format.code.bits, tuple(map(str, ScaleRounding))
    if quant.scaling is Scaling.DEQUANT:
        return (
            Let("hidden", f"of_row * 8 // {bits}"),
            Require(
                f"hidden % {group} == 0 and hidden * {bits} // 8 == of_row",
                f"rows of {{of_row}} bytes are no whole number of {format}'s groups, of {group * bits // 8} each",
            ),
            Let("padded", "hidden"),
            *_block_scales(quant, format),
        )
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
        Let("of_row", f"hidden * {bits} // 8"),
        Let("padded", f"size(out, -1) * 8 // {bits}"),
        Require(
            f"padded >= hidden and padded % {group} == 0 and (hidden >= 1 or padded == 0)",
            "{out.name} is {out.shape}, expected {input.ending[of_row]} for an input of {input.shape}, or wider rows of whole "
            "groups, padded with zeros",
        ),
        *_block_scales(quant, format),
    )


def _block_scales(quant: QuantOp, format: Format) -> tuple[Step, ...]:
    """Steps that hold block scales to their sizes and dtypes."""
    dtypes = _BYTES[format.has_global_scale]
    return (
        Let("groups", f"padded // {format.group}"),
        OneOf(
            "has_words",
            {
                "bytes": f"dtype(scales) in {torch_names(dtypes[:-1])}",
                "words": f"dtype(scales) in {torch_names(dtypes[-1:])}",
            },
            f"{{scales.name}} is {{scales.dtype}}, expected {any_of([x.torch_name for x in dtypes])}",
        ),
        Require(
            "has_words == 0 or is_swizzled == 1",
            "{scales.name} is int32: scales in rows are bytes, only swizzled ones come as words of four",
        ),
        *(
            ()
            if quant.scaling is Scaling.EXPERTS
            else (Let("scale_rows", "is_swizzled * up(rows, 128) + (1 - is_swizzled) * rows"),)
        ),
        Let("scale_columns", "is_swizzled * up(groups, 4) // (1 + 3 * has_words) + (1 - is_swizzled) * groups"),
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


def _modulation() -> Iterator[Step]:
    """Steps for the factor and the addend of a row: one for all rows, or one for each."""
    yield Check(Aspect.DTYPE, " ".join(_MODULATION))
    for role in _MODULATION:
        yield OneOf(
            f"{role}_kind",
            {
                "row": f"numel({role}) == hidden and longer({role}) <= 1 and dense({role}) == 1",
                "rows": f"like({role}, input, hidden) and row_stride({role}) >= 0",
            },
            f"{role} has shape {{{role}.shape}} and strides {{{role}.strides}}: expected [{{hidden}}] or {{input.ending[hidden]}}, "
            "rows of contiguous values",
        )
        yield Let(f"{role}_stride", f"row_stride({role}) * {role}_kind")


def _activation(quant: QuantOp) -> tuple[Step, ...]:
    offered = tuple(activation.op_argument for activation in quant.activations)
    return (
        Require(
            f"activation in {offered}", f"activation is {{activation!r}}, expected {any_of(list(map(repr, offered)))}"
        ),
        Let("chosen", f"activation_index + {list(Activation).index(quant.activations[0])}"),
    )


def _scales(quant: QuantOp) -> tuple[Step, ...]:
    """Steps that hold scales to their layout."""
    if quant.scaling.is_given:
        return (Special("static_scales"),)
    if quant.format:
        checks = (Check(aspect, "scales") for aspect in (Aspect.RANK, Aspect.SHAPE, Aspect.LAYOUT))
        read = quant.scaling is Scaling.DEQUANT
        return *checks, _SWIZZLED, *((Let("scales_stride", "row_stride(scales)"),) if read else ())
    if quant.scaling is Scaling.TENSOR:
        some = "{scales.name} has shape {scales.shape}: expected one value, for the tensor, or more, of which the first is written"
        return (Require("numel(scales) >= 1", some),)
    if quant.scaling.is_per_row:
        return Check(Aspect.SHAPE, "scales"), Check(Aspect.LAYOUT, "scales")
    return (
        *_group_size(quant),
        Require("hidden % group_size == 0", "rows of {hidden} values are not a multiple of group_size {group_size}"),
        Let("groups", "hidden // group_size"),
        Let("words", "ceil(groups, 4)" if quant.is_packed else "groups"),
        Let("scale_rows", "up(rows, 4)" if quant.is_packed else "rows"),
        Special("group_scales"),
    )


def _group_size(quant: QuantOp) -> tuple[Step, ...]:
    """Steps that hold a group's size, and name the size for which the call's kernel is compiled: 0 for a kernel of any
    size.
    """
    sizes = tuple(size for size in quant.group_sizes if size)
    if not quant.takes_any_group:
        found = f"group_size is {{group_size}}, expected {' or '.join(map(str, sizes))}"
        return Require(f"group_size in {sizes}", found), Let("built_group", "group_size")
    tests = {"compiled": f"group_size in {sizes}", "told": "group_size >= 1"}
    return (
        OneOf("of_any_group", tests, "group_size is {group_size}, expected 1 or more"),
        Let("built_group", "group_size * (1 - of_any_group)"),
    )


def _numbers(quant: QuantOp, has: frozenset[str]) -> tuple[Step, ...]:
    """Steps for the arguments other than tensors."""
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
