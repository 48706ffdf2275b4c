"""The ops, and what must hold for a call of each."""

from fractions import Fraction

from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.config import WEIGHT_PAIRS, Pair
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, OpSet, Require, Same, Step, Tensor, When, any_of
from gemmill.family.operand import MOST_OF_TMA
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

FP4_WEIGHT_MM = OpSchema(
    "fp4_weight_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor b_sf, Tensor? alpha, Tensor? bias, str format, "
    "bool prepacked) -> ()"
)
FP4_MM = "cutlass_scaled_fp4_mm"
_PAIRED = "(Tensor(a!) out, Tensor a, Tensor b, Tensor a_sf, Tensor b_sf, Tensor alpha, Tensor? bias) -> ()"
PAIR_OF = {
    OpSchema(f"cutlass_scaled_{name}_mm{_PAIRED}"): pair
    for name, pair in {
        "nvfp4": Pair.NVFP4,
        "mxfp4": Pair.MXFP4,
        "mxfp8": Pair.MXFP8,
        "mxfp6_mxfp8": Pair.MXFP8_MXFP6,
        "mxfp4_mxfp8": Pair.MXFP8_MXFP4,
    }.items()
} | {
    OpSchema(
        f"{FP4_MM}(Tensor(a!) out, Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()"
    ): Pair.NVFP4
}
"""Those of LightX2V, and vLLM's of the same function: what each multiplies."""
SCHEMAS = (FP4_WEIGHT_MM, *PAIR_OF)
OPS_OF = {
    pair: (FP4_WEIGHT_MM.name,)
    if pair in WEIGHT_PAIRS
    else tuple(schema.name for schema, of_schema in PAIR_OF.items() if of_schema is pair)
    for pair in Pair
}
"""Names of the ops that compute a pair."""

_ROLES = {"block_scale_a": "a_sf", "block_scale_b": "b_sf"}
_TENSORS = "out a b a_sf b_sf alpha bias"
_FLOATS16 = (DType.BF16, DType.F16)
_SCALE_DTYPES = {True: (DType.U8, DType.E4M3), False: (DType.U8,)}
"""What block scales may come as, by whether they are ue4m3."""
_LIMIT = Require(
    f"M <= {MOST_OF_TMA} and N <= {MOST_OF_TMA} and K <= {MOST_OF_TMA}",
    f"M, N, K = {{M}}, {{N}}, {{K}}: each must be at most {MOST_OF_TMA}",
)
_END: tuple[Step, ...] = (
    Check(Aspect.WHOLE, "alpha bias"),
    Check(Aspect.DEVICE, _TENSORS),
    Check(Aspect.APART, _TENSORS),
    CLASSES,
)


def _dense(role: str, what: str) -> Require:
    return Require(f"dense({role}) == 1", f"{{{role}.name}} has strides {{{role}.strides}}: {what} must be contiguous")


def _packed(letter: str, format: Format) -> str:
    """Bytes of a row's codes."""
    part = Fraction(format.code.bits, 8)
    times = f"{part.numerator}*" if part.numerator > 1 else ""
    return f"{times}{letter}/{part.denominator}" if part != 1 else letter


def _code_dtypes(format: Format) -> tuple[DType | Format, ...]:
    """What a tensor of codes may be: bytes, and their own dtype where torch has it."""
    return (DType.U8,) if format.code.bits < 8 else (DType.E4M3, DType.U8)


def _paired(schema: OpSchema, pair: Pair) -> Op:
    a_format, b_format = pair.a_format, pair.b_format
    assert a_format is not None
    group = b_format.group
    scales = _SCALE_DTYPES[b_format.has_global_scale]
    tensors = (
        Tensor("out", "M N", _FLOATS16, Layout.ROWS),
        Tensor("a", f"M {_packed('K', a_format)}", _code_dtypes(a_format), Layout.ROWS),
        Tensor("b", f"N {_packed('K', b_format)}", _code_dtypes(b_format), Layout.ROWS),
        Tensor("a_sf", "a_rows scales", scales, Layout.ROWS),
        Tensor("b_sf", "b_rows scales", scales, Layout.ROWS),
        Tensor("alpha", "1", (DType.F32,), Layout.VALUES),
        Tensor("bias", "N", Same("out"), Layout.VECTOR),
    )
    has = {_ROLES.get(name, name) for name in schema.arguments}
    return Op(
        schema=schema,
        roles={name: role for name, role in _ROLES.items() if name in schema.arguments},
        fixed={"pair": list(Pair).index(pair)},
        tensors=tuple(tensor for tensor in tensors if tensor.role in has),
        contract=(
            Check(Aspect.DTYPE, "out a b a_sf b_sf"),
            Check(Aspect.RANK, "out a b a_sf b_sf"),
            Check(Aspect.SHAPE, "a b out"),
            _LIMIT,
            Require(f"K % {group} == 0", f"K is {{K}}, which is not a multiple of {b_format}'s group of {group}"),
            Let("a_rows", "up(M, 128)"),
            Let("b_rows", "up(N, 128)"),
            Let("scales", f"up(K // {group}, 4)"),
            Check(Aspect.SHAPE, "a_sf b_sf"),
            Check(Aspect.LAYOUT, "a b out a_sf b_sf"),
            _dense("a_sf", "swizzled scales"),
            _dense("b_sf", "swizzled scales"),
            *_END,
        ),
    )


_FORMATS = tuple(str(pair.b_format) for pair in WEIGHT_PAIRS)
_GROUP = f"{NVFP4.group} + {MXFP4.group - NVFP4.group} * format_index"
_BLOCK_BYTES = f"{SIDE * SIDE // 2} + {SIDE * SIDE} // group"


def _weight_op() -> Op:
    """Weights in a checkpoint's order are [N, K / 2] with scales [N, K / group]; packed ones are blocks, with a base for each row."""
    packed = (
        Let("tiles", f"ceil(N, {SIDE})"),
        Let("blocks", f"up(K, {STAGE_COLUMNS}) // {SIDE}"),
        Let("block_bytes", _BLOCK_BYTES),
        Require("dtype(b_sf) == float32", "{b_sf.name} is {b_sf.dtype}, expected float32: bases of packed weights"),
        Require(
            "rank(b) == 3 and size(b, 0) == tiles and size(b, 1) == blocks and size(b, 2) == block_bytes",
            "{b.name} is {b.shape}, expected [{tiles}, {blocks}, {block_bytes}] for {N} x {K} weights packed by "
            "gemmill.quantize.fp4_blocks.to_blocks",
        ),
        Require(
            "numel(b_sf) == N", "{b_sf.name} has shape {b_sf.shape}: expected {N} bases, one for each row of weights"
        ),
    )
    plain = (
        Let("code_bytes", "K // 2"),
        Let("groups", "K // group"),
        Require(
            "dtype(b_sf) in (uint8, float8_e4m3fn)",
            "{b_sf.name} is {b_sf.dtype}, expected uint8 or float8_e4m3fn: scales of weights that are not packed",
        ),
        Require(
            "rank(b) == 2 and size(b, 0) == N and size(b, 1) == code_bytes",
            "{b.name} is {b.shape}, expected [N, K / 2] = [{N}, {code_bytes}]",
        ),
        Require(
            "rank(b_sf) == 2 and size(b_sf, 0) == N and size(b_sf, 1) == groups",
            "{b_sf.name} is {b_sf.shape}, expected [N, K / {group}] = [{N}, {groups}], not swizzled",
        ),
    )
    return Op(
        schema=FP4_WEIGHT_MM,
        tensors=(
            Tensor("out", "M N", Same("a"), Layout.ROWS),
            Tensor("a", "M K", _FLOATS16, Layout.ROWS),
            Tensor("b", "N K", (DType.U8,)),
            Tensor("b_sf", "N", (DType.U8, DType.E4M3, DType.F32)),
            Tensor("alpha", "1", (DType.F32,), Layout.VALUES),
            Tensor("bias", "N", Same("out"), Layout.VECTOR),
        ),
        contract=(
            Require(f"format in {_FORMATS}", f"format is {{format!r}}, expected {any_of(list(map(repr, _FORMATS)))}"),
            Let("pair", "format_index"),
            Check(Aspect.DTYPE, "a b b_sf out"),
            Check(Aspect.RANK, "out a"),
            Check(Aspect.SHAPE, "a out"),
            _LIMIT,
            Let("group", _GROUP),
            Require("K % group == 0", "K is {K}, which is not a multiple of {format}'s group of {group}"),
            Check(Aspect.LAYOUT, "a out"),
            When("prepacked == 1", packed),
            When("prepacked == 0", plain),
            _dense("b", "weights"),
            _dense("b_sf", "scales"),
            *_END,
        ),
    )


OPS = OpSet(ops=(_weight_op(), *(_paired(schema, pair) for schema, pair in PAIR_OF.items())))
