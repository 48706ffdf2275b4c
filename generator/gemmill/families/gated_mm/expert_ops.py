"""The ops of rows that belong to experts, and the contract of each."""

from gemmill.families.gated_mm.classes import CLASSES
from gemmill.families.gated_mm.config import FINE_GROUP, GROUP, OPERANDS
from gemmill.families.gated_mm.steps import HIDDEN, K_GROUPS, KINDS, OF_GROUPS, RESULTS, STATIC, WHOLE_GROUPS
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSchema, Require, Same, Step, Tensor, When
from gemmill.gemm.expert_rows import (
    IDS,
    IN_ORDER_OR_GATHERED,
    IN_SLOTS,
    MAP,
    OFFSETS,
    ROWS_USED,
    SEGMENTS,
    USED_ROWS,
    rows_at_one_stride,
)
from gemmill.gemm.gates import KNOWN, NUMBERS
from gemmill.vocab import DType

GROUPED_MM_ACT_QUANT = OpSchema(
    "grouped_mm_act_quant(Tensor(a!) out, Tensor(b!)? out_scales, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor expert_offsets, str activation, float alpha, float limit, float beta, Tensor? static_scale=None, "
    "Tensor? expert_map=None, Tensor? token_ids=None) -> ()"
)
GROUPED_MM_ACT_QUANT_MASKED = OpSchema(
    "grouped_mm_act_quant_masked(Tensor(a!) out, Tensor(b!)? out_scales, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor rows, str activation, float alpha, float limit, float beta, Tensor? static_scale=None, Tensor? expert_map=None, "
    "int expected_rows=0) -> ()"
)
EXPERT_NAMES = (GROUPED_MM_ACT_QUANT.name, GROUPED_MM_ACT_QUANT_MASKED.name)
_ROLES = "out out_scales a b a_scales b_scales static_scale expert_offsets expert_map token_ids"


def _in_groups(blocks: str, k_groups: str) -> str:
    return (
        f"rank(b_scales) == 3 and size(b_scales, 0) == weights and size(b_scales, 1) == {blocks} and "
        f"size(b_scales, 2) == {k_groups}"
    )


def _scales(shape: str, test: str) -> tuple[Step, ...]:
    """Steps for the scales of operands: of rows and columns, or in groups.

    `shape` is that of A's scales in groups; `test` must hold for them.
    """
    return (
        *K_GROUPS,
        Let("channels", "weights * N"),
        OneOf(
            "in_groups",
            {
                "channel": "rank(b_scales) <= 2 and dense(b_scales) == 1 and numel(b_scales) in (weights, channels)",
                "groups": _in_groups("blocks", "k_groups"),
                "fine": _in_groups("fine_blocks", "fine_k_groups"),
                "rows": _in_groups("N", "fine_k_groups"),
            },
            "{b_scales.name} has shape {b_scales.shape}: for weights of {b.shape} there are scales of each expert ([{weights}]), of "
            f"each column ([{{weights}}, {{N}}], contiguous), of {GROUP} gates or ups and {GROUP} along K ([{{weights}}, {{blocks}}, "
            f"{{k_groups}}]), of {FINE_GROUP} and {FINE_GROUP} ([{{weights}}, {{fine_blocks}}, {{fine_k_groups}}]), or of each and "
            f"{FINE_GROUP} along K ([{{weights}}, {{N}}, {{fine_k_groups}}])",
        ),
        *KINDS,
        When(
            "in_groups == 0",
            (
                Require(
                    "numel(a_scales) in (1, tokens) and dense(a_scales) == 1",
                    "{a_scales.name} has shape {a_scales.shape} and strides {a_scales.strides}: with scales of columns there is one "
                    "value, or one for each of {tokens} rows, without gaps",
                ),
            ),
        ),
        When(
            "in_groups >= 1",
            (
                OF_GROUPS,
                Let("scales_of_row", "ceil(K, group)"),
                Require(
                    test,
                    f"{{a_scales.name}} has shape {{a_scales.shape}}, expected {shape}: a scale of each row for each {{group}} along K, as "
                    "{b_scales.name} of {b_scales.shape} has them",
                ),
            ),
        ),
    )


def _of_groups(shape: str, test: str, *more: Step) -> When:
    """Steps for results with scales in groups: `test` must hold for out_scales, whose shape is `shape`."""
    said = (
        f"{{out_scales.name}} has shape {{out_scales.shape}}, expected {shape}: a scale for each {{group}} of a row; for one of a whole "
        "row store bfloat16, and quantise that"
    )
    return When("result == 2", (*WHOLE_GROUPS, Require(test, said), *more))


_OPERANDS: tuple[Step, ...] = (
    KNOWN,
    *NUMBERS,
    Let("of_experts", "1"),
    Check(Aspect.DTYPE, "a b out a_scales b_scales"),
    Check(Aspect.RANK, "out a b"),
    Check(Aspect.SHAPE, "a b"),
    *HIDDEN,
    Check(Aspect.SHAPE, "out"),
)
_END: tuple[Step, ...] = (Check(Aspect.DEVICE, _ROLES), Check(Aspect.APART, _ROLES), CLASSES)
_B = Tensor("b", "weights N K", Same("a"))
_NUMBERS_OF = (
    Tensor("a_scales", "M", (DType.F32,)),
    Tensor("b_scales", "N", (DType.F32,)),
    Tensor("static_scale", "1", (DType.F32,), Layout.VALUES),
)
_STORED = (DType.BF16, DType.E4M3)
_CONTIGUOUS = Op(
    schema=GROUPED_MM_ACT_QUANT,
    tensors=(
        Tensor("out", "M hidden", _STORED, Layout.ROWS),
        Tensor("out_scales", "M groups", (DType.F32,)),
        Tensor("a", "tokens K", OPERANDS, Layout.ROWS),
        _B,
        *_NUMBERS_OF,
        OFFSETS,
        MAP,
        IDS,
    ),
    contract=(
        *_OPERANDS,
        *IN_ORDER_OR_GATHERED,
        *rows_at_one_stride("b"),
        *_scales(
            "[{tokens}, {scales_of_row}]",
            "rank(a_scales) == 2 and size(a_scales, 0) == tokens and size(a_scales, 1) == scales_of_row",
        ),
        RESULTS,
        STATIC,
        _of_groups(
            "[{M}, {groups}]",
            "rank(out_scales) == 2 and size(out_scales, 0) == M and size(out_scales, 1) == groups",
            Require(
                "step(out_scales, 1) == 1 and (M <= 1 or step(out_scales, 0) >= groups) or "
                "step(out_scales, 0) == 1 and (groups <= 1 or step(out_scales, 1) >= M)",
                "{out_scales.name} has strides {out_scales.strides}: rows or columns of it must lie apart, and be without gaps",
            ),
        ),
        *SEGMENTS,
        *_END,
    ),
)
_MASKED = Op(
    schema=GROUPED_MM_ACT_QUANT_MASKED,
    roles={"rows": "expert_offsets"},
    tensors=(
        Tensor("out", "experts slot hidden", _STORED),
        Tensor("out_scales", "experts slot groups", (DType.F32,)),
        Tensor("a", "experts slot K", OPERANDS),
        _B,
        *_NUMBERS_OF,
        ROWS_USED,
        MAP,
    ),
    contract=(
        *_OPERANDS,
        *IN_SLOTS,
        *rows_at_one_stride("b"),
        *rows_at_one_stride("out"),
        Require(
            "M <= 1 or out_rows >= hidden",
            "{out.name} has row stride {out_rows} for rows of {hidden}: its rows overlap",
        ),
        *_scales(
            "[{experts}, {slot}, {scales_of_row}], all rows at one stride",
            "rank(a_scales) == 3 and size(a_scales, 0) == experts and size(a_scales, 1) == slot and "
            "size(a_scales, 2) == scales_of_row and (experts <= 1 or slot <= 1 or step(a_scales, 0) == slot * step(a_scales, 1))",
        ),
        RESULTS,
        STATIC,
        _of_groups(
            "[{experts}, {slot}, {groups}]",
            "rank(out_scales) == 3 and size(out_scales, 0) == experts and size(out_scales, 1) == slot and "
            "size(out_scales, 2) == groups",
            *rows_at_one_stride("out_scales"),
            Require(
                "M <= 1 or out_scales_rows >= groups",
                "{out_scales.name} has row stride {out_scales_rows} for rows of {groups}: its rows overlap",
            ),
        ),
        *USED_ROWS,
        *_END,
    ),
)
EXPERT_OPS = (_CONTIGUOUS, _MASKED)
