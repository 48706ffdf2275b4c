"""The grouped GEMMs of packed 4-bit weights, and the contract of each."""

from gemmill.families.grouped_mm.config import FP4_FORMATS, FP4_PAIRS
from gemmill.families.grouped_mm.steps import ALPHA_AND_BIAS, end_of
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSchema, Require, Step, Tensor, When, any_of
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.gemm.expert_rows import (
    IDS,
    IN_ORDER_OR_GATHERED,
    IN_SLOTS,
    MAP,
    OFFSETS,
    ROWS_APART,
    ROWS_USED,
    SEGMENTS,
    USED_ROWS,
    rows_at_one_stride,
)
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4, NVFP4

_ARGUMENTS = (
    "(Tensor(a!) out, Tensor a, Tensor b, Tensor? a_scales, Tensor b_scales, Tensor? alpha, Tensor? bias, Tensor {rows}, "
    "Tensor? expert_map, {last}, str format) -> ()"
)
GROUPED_FP4_MM = OpSchema("grouped_fp4_mm" + _ARGUMENTS.format(rows="expert_offsets", last="Tensor? token_ids"))
GROUPED_FP4_MM_MASKED = OpSchema("grouped_fp4_mm_masked" + _ARGUMENTS.format(rows="rows", last="int expected_rows"))
FP4_NAMES = (GROUPED_FP4_MM.name, GROUPED_FP4_MM_MASKED.name)

_A = tuple(dict.fromkeys(dtype for dtype, _ in FP4_PAIRS))
_WEIGHTS = (
    Tensor("b", "weights tiles blocks block_bytes", (DType.U8,)),
    Tensor("a_scales", "tokens", (DType.F32,)),
    Tensor("b_scales", "weights N", (DType.F32,)),
    Tensor("alpha", "weights", (DType.F32,), Layout.VECTOR),
    Tensor("bias", "weights N", (DType.BF16,)),
)
_NAMES = tuple(map(str, FP4_FORMATS))
_FORMAT: tuple[Step, ...] = (
    Require(f"format in {_NAMES}", f"format is {{format!r}}, expected {any_of(list(map(repr, _NAMES)))}"),
    Let("packed", "format_index + 1"),
    Check(Aspect.DTYPE, "a b b_scales out"),
    OneOf(
        "scaled",
        {"no": f"dtype(a) in ({DType.BF16.torch_name},)", "yes": f"dtype(a) in ({DType.E4M3.torch_name},)"},
        "{a.name} is {a.dtype}",
    ),
    Require(
        "scaled == 0 or packed == 2",
        f"{{a.name}} is {{a.dtype}} and format {{format!r}}: with e4m3, weights are {MXFP4}, which fold into it exactly",
    ),
    When(
        "scaled == 0",
        (
            Require(
                "a_scales == 0",
                "{a.name} is {a.dtype}, and a_scales are given: activations of 16 bits have no scales",
            ),
        ),
    ),
    When(
        "scaled == 1",
        (
            Require(
                "a_scales == 1",
                "{a.name} is {a.dtype}, and a_scales are not given: activations of 8 bits have them",
            ),
            Check(Aspect.DTYPE, "a_scales"),
        ),
    ),
    Check(Aspect.RANK, "out a"),
    Check(Aspect.SHAPE, "a out"),
)
_BLOCKS: tuple[Step, ...] = (
    Let("group", f"{NVFP4.group} + {MXFP4.group - NVFP4.group} * format_index"),
    Require("K % group == 0", "K is {K}, which is not a multiple of {format}'s group of {group}"),
    Let("columns", f"{SIDE} + {BLOCK_COLUMNS - SIDE} * scaled"),
    Let("tiles", f"ceil(N, {SIDE})"),
    Let("blocks", f"up(K, {STAGE_COLUMNS}) // columns"),
    Let("block_bytes", f"{SIDE} * columns // 2 + {SIDE} * columns // group"),
    Require(
        "rank(b) == 4 and size(b, 1) == tiles and size(b, 2) == blocks and size(b, 3) == block_bytes",
        "{b.name} is {b.shape}, expected [experts, {tiles}, {blocks}, {block_bytes}] for experts of {N} x {K} weights packed by "
        "gemmill.quantize.prepack_experts for {a.dtype}",
    ),
    Let("weights", "size(b, 0)"),
    Require("dense(b) == 1", "{b.name} has strides {b.strides}: weights must be contiguous"),
    Require(
        "rank(b_scales) == 2 and size(b_scales, 0) == weights and size(b_scales, 1) == N and dense(b_scales) == 1",
        "{b_scales.name} has shape {b_scales.shape} and strides {b_scales.strides}: expected bases of each expert's rows of weights "
        "([{weights}, {N}], contiguous)",
    ),
    When(
        "scaled == 1",
        (
            Require(
                "numel(a_scales) in (1, tokens) and dense(a_scales) == 1",
                "{a_scales.name} has shape {a_scales.shape} and strides {a_scales.strides}: there is one value, or one for each of "
                "{tokens} rows, without gaps",
            ),
        ),
    ),
    *ALPHA_AND_BIAS,
)
PACKED_OPS = (
    Op(
        schema=GROUPED_FP4_MM,
        tensors=(
            Tensor("out", "M N", (DType.BF16,), Layout.ROWS),
            Tensor("a", "tokens K", _A, Layout.ROWS),
            *_WEIGHTS,
            OFFSETS,
            MAP,
            IDS,
        ),
        contract=(*_FORMAT, *IN_ORDER_OR_GATHERED, *_BLOCKS, *SEGMENTS, *end_of("expert_offsets")),
    ),
    Op(
        schema=GROUPED_FP4_MM_MASKED,
        roles={"rows": "expert_offsets"},
        tensors=(
            Tensor("out", "experts slot N", (DType.BF16,)),
            Tensor("a", "experts slot K", _A),
            *_WEIGHTS,
            ROWS_USED,
            MAP,
        ),
        contract=(
            *_FORMAT,
            *IN_SLOTS,
            *rows_at_one_stride("out"),
            ROWS_APART,
            *_BLOCKS,
            *USED_ROWS,
            *end_of("expert_offsets"),
        ),
    ),
)
