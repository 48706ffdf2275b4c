"""The ops, and the contract of each."""

from fractions import Fraction

from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.family import (
    Aspect,
    Check,
    Layout,
    Let,
    OneOf,
    Op,
    OpSchema,
    OpSet,
    Require,
    Same,
    Step,
    Tensor,
    When,
    any_of,
)
from gemmill.family.operand import MOST_OF_TMA
from gemmill.formats.layout import BLOCK_COLUMNS, ROW_BYTES, SIDE, STAGE_COLUMNS
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

FP4_WEIGHT_MM = OpSchema(
    "fp4_weight_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor b_sf, Tensor? alpha, Tensor? bias, str format, "
    "bool prepacked) -> ()"
)
_FOLDED = "(Tensor(a!) out, Tensor a, Tensor b, Tensor b_base, Tensor a_scales, Tensor? bias) -> ()"
FOLDED_PAIR_OF = {
    OpSchema(f"{name}{_FOLDED}"): pair
    for name, pair in zip(("mxfp4_fp8_mm", "nvfp4_fp8_mm_rounded"), FOLDED_PAIRS, strict=True)
}
"""The pair of each op of folded 4-bit weights and e4m3 activations."""
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
"""The pair of each of LightX2V's ops, and of vLLM's for the same function."""
SCHEMAS = (FP4_WEIGHT_MM, *FOLDED_PAIR_OF, *PAIR_OF)
PAIR_BY_OP = {schema.name: pair for schema, pair in (FOLDED_PAIR_OF | PAIR_OF).items()}
"""The pair of each op with only one, by the op's name."""
OPS_OF = {
    pair: (FP4_WEIGHT_MM.name,)
    if pair in WEIGHT_PAIRS
    else tuple(name for name, of_op in PAIR_BY_OP.items() if of_op is pair)
    for pair in Pair
}
"""Names of the ops that compute a pair."""

_ROLES = {"block_scale_a": "a_sf", "block_scale_b": "b_sf", "a_scales": "a_sf", "b_base": "b_sf"}
_TENSORS = "out a b a_sf b_sf alpha bias"
_FLOATS16 = (DType.BF16, DType.F16)
_SCALE_DTYPES = {True: (DType.U8, DType.E4M3), False: (DType.U8,)}
"""Dtypes that block scales may come in, by whether they are ue4m3."""
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
    """The term for the bytes of a row's codes."""
    part = Fraction(format.code.bits, 8)
    times = f"{part.numerator}*" if part.numerator > 1 else ""
    return f"{times}{letter}/{part.denominator}" if part != 1 else letter


def _code_dtypes(format: Format) -> tuple[DType | Format, ...]:
    """Dtypes that a tensor of codes may have: bytes, and the codes' own dtype where torch has it."""
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
_GROUP = f"{MXFP4.group} - {MXFP4.group - NVFP4.group} * (1 // (1 + format_index))"
_BITS = "4 + 2 * most(format_index - 1, 0)"
_BLOCK_BYTES = f"{SIDE * SIDE // 2} + {SIDE * SIDE} // group"
_IN_PLAIN, _IN_BLOCKS, _IN_ROWS = "plain", "blocks", "rows"


def _bases(n: str) -> tuple[Step, ...]:
    """Conditions on the bases of packed weights in fp4_weight_mm."""
    return (
        Require("dtype(b_sf) == float32", "{b_sf.name} is {b_sf.dtype}, expected float32: bases of packed weights"),
        Require(
            f"numel(b_sf) == {n}", "{b_sf.name} has shape {b_sf.shape}: expected {N} bases, one for each row of weights"
        ),
    )


def _weights_in_blocks() -> tuple[Step, ...]:
    dtype, count = _bases("N")
    return (
        Let("tiles", f"ceil(N, {SIDE})"),
        Let("blocks", f"up(K, {STAGE_COLUMNS}) // {SIDE}"),
        Let("block_bytes", _BLOCK_BYTES),
        dtype,
        Require(
            "rank(b) == 3 and size(b, 0) == tiles and size(b, 1) == blocks and size(b, 2) == block_bytes",
            "{b.name} is {b.shape}, expected [{tiles}, {blocks}, {block_bytes}] for {N} x {K} weights packed by "
            "gemmill.quantize.fp4_blocks.to_blocks",
        ),
        count,
    )


def _weights_in_rows() -> tuple[Step, ...]:
    dtype, count = _bases("N")
    return (
        Let("row_bytes", f"up(code_bytes + groups, {ROW_BYTES})"),
        dtype,
        Require(
            "rank(b) == 2 and size(b, 0) == N and size(b, 1) == row_bytes",
            "{b.name} is {b.shape}, expected [N, {row_bytes}] = [{N}, {row_bytes}]: {format} weights for {a.dtype} packed by "
            "gemmill.quantize.packed_rows.to_rows",
        ),
        count,
    )


def _weights_of_checkpoint() -> tuple[Step, ...]:
    return (
        Require(
            "dtype(b_sf) in (uint8, float8_e4m3fn)",
            "{b_sf.name} is {b_sf.dtype}, expected uint8 or float8_e4m3fn: scales of weights that are not packed",
        ),
        Require(
            "rank(b) == 2 and size(b, 0) == N and size(b, 1) == code_bytes",
            "{b.name} is {b.shape}, expected [N, bytes of K codes] = [{N}, {code_bytes}]",
        ),
        Require(
            "rank(b_sf) == 2 and size(b_sf, 0) == N and size(b_sf, 1) == groups",
            "{b_sf.name} is {b_sf.shape}, expected [N, K / {group}] = [{N}, {groups}], not swizzled",
        ),
    )


def _weight_op() -> Op:
    """The op of block-scaled weights and 16-bit activations.

    Weights in a checkpoint's order are [N, bytes of K codes] with scales [N, K / group]. Packed ones have a base for
    each row. 4-bit ones with bf16 are blocks; others are rows with their scales behind their codes.
    """
    layouts = {
        _IN_PLAIN: "prepacked == 0",
        _IN_BLOCKS: "format_index <= 1 and dtype(a) == bfloat16",
        _IN_ROWS: "rank(a) == 2",
    }
    checks = (_weights_of_checkpoint(), _weights_in_blocks(), _weights_in_rows())
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
            Let("code_bytes", f"K * ({_BITS}) // 8"),
            Let("groups", "K // group"),
            Check(Aspect.LAYOUT, "a out"),
            OneOf("layout", layouts, "a has no rows"),
            *(When(f"layout == {i}", steps) for i, steps in enumerate(checks)),
            _dense("b", "weights"),
            _dense("b_sf", "scales"),
            *_END,
        ),
    )


def _folded(schema: OpSchema, pair: Pair) -> Op:
    """An op of e4m3 activations and 4-bit weights.

    Weights are blocks of folded ones. Of mxfp4 that does not fold they are rows with their scales behind their codes. `b_base`
    and `a_scales` are of rows, or of 128 columns of each.
    """
    group, may_widen = pair.b_format.group, pair is Pair.E4M3_MXFP4
    block_bytes = SIDE * BLOCK_COLUMNS // 2 + SIDE * BLOCK_COLUMNS // group
    rows = "numel(a_sf) == M and numel(b_sf) == N"
    columns = "rank(a_sf) == 2 and size(a_sf, 0) == M and size(a_sf, 1) == parts and rank(b_sf) == 2 and size(b_sf, 0) == N and "
    columns += "size(b_sf, 1) == parts"
    of_rows = (
        "{a_sf.name} has shape {a_sf.shape} and {b_sf.name} {b_sf.shape}: expected {M} and {N} values, one for each row"
    )
    in_rows = " or rank(b) == 2 and size(b, 0) == N and size(b, 1) == row_bytes" if may_widen else ""
    said = "{b.name} is {b.shape}, expected [{tiles}, {blocks}, " + f"{block_bytes}]"
    said += ", or of weights that do not fold [{N}, {row_bytes}]," if may_widen else ""
    said += " for {N} x {K} weights packed by gemmill.quantize.folded_blocks.to_folded_blocks"
    return Op(
        schema=schema,
        roles={name: role for name, role in _ROLES.items() if name in schema.arguments},
        fixed={"pair": list(Pair).index(pair)},
        tensors=(
            Tensor("out", "M N", _FLOATS16, Layout.ROWS),
            Tensor("a", "M K", (DType.E4M3,), Layout.ROWS),
            Tensor("b", "N K", (DType.U8,)),
            Tensor("b_sf", "N", (DType.F32,)),
            Tensor("a_sf", "M", (DType.F32,)),
            Tensor("bias", "N", Same("out"), Layout.VECTOR),
        ),
        contract=(
            Check(Aspect.DTYPE, "out a b b_sf a_sf"),
            Check(Aspect.RANK, "out a"),
            Check(Aspect.SHAPE, "a out"),
            _LIMIT,
            Require(f"K % {group} == 0", f"K is {{K}}, which is not a multiple of {pair.b_format}'s group of {group}"),
            Check(Aspect.LAYOUT, "a out"),
            Let("tiles", f"ceil(N, {SIDE})"),
            Let("blocks", f"up(K, {STAGE_COLUMNS}) // {BLOCK_COLUMNS}"),
            Let("row_bytes", f"up(K // 2 + K // {group}, {ROW_BYTES})"),
            Require(
                f"rank(b) == 3 and size(b, 0) == tiles and size(b, 1) == blocks and size(b, 2) == {block_bytes}{in_rows}",
                said,
            ),
            Let("prepacked", "rank(b) - 2"),
            Let("parts", f"ceil(K, {BLOCK_COLUMNS})"),
            OneOf(
                "grouped",
                {"rows": rows} | ({"columns": columns} if may_widen else {}),
                of_rows + (", or [{M}, {parts}] and [{N}, {parts}]" if may_widen else ""),
            ),
            _dense("b", "weights"),
            _dense("b_sf", "bases"),
            _dense("a_sf", "scales"),
            *_END,
        ),
    )


OPS = OpSet(
    ops=(
        _weight_op(),
        *(_folded(schema, pair) for schema, pair in FOLDED_PAIR_OF.items()),
        *(_paired(schema, pair) for schema, pair in PAIR_OF.items()),
    )
)
