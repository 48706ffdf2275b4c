"""The op without experts, and its contract."""

from gemmill.families.gated_mm.classes import CLASSES
from gemmill.families.gated_mm.config import FINE_GROUP, GROUP, OPERANDS
from gemmill.families.gated_mm.expert_ops import EXPERT_OPS
from gemmill.families.gated_mm.steps import HIDDEN, K_GROUPS, KINDS, OF_GROUPS, RESULTS, STATIC, WHOLE_GROUPS
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSchema, OpSet, Require, Same, Tensor, When
from gemmill.family.operand import MOST_OF_TMA
from gemmill.gemm.gates import KNOWN, NUMBERS
from gemmill.vocab import DType

SCALED_MM_ACT_QUANT = OpSchema(
    "scaled_mm_act_quant(Tensor(a!) out, Tensor(b!)? out_scales, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "str activation, float alpha, float limit, float beta, Tensor? static_scale=None) -> ()"
)
_ROLES = "out out_scales a b a_scales b_scales static_scale"
_LIMIT = Require(
    f"M <= {MOST_OF_TMA} and N <= {MOST_OF_TMA} and K <= {MOST_OF_TMA}",
    f"M, N, K = {{M}}, {{N}}, {{K}}: each must be at most {MOST_OF_TMA}",
)


def _values(role: str, count: str, what: str, blocks: str = "") -> Require:
    return Require(
        f"numel({role}) in (1, {count}) and longer({role}) <= 1 and dense({role}) == 1",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: there is one value, or one for each of "
        f"{{{count}}} {what}, without gaps{blocks}",
    )


_IN_GROUPS = {
    "groups": "size(b_scales, 0) == k_groups and size(b_scales, 1) == blocks",
    "fine": "size(b_scales, 0) == fine_k_groups and size(b_scales, 1) == fine_blocks",
    "rows": "size(b_scales, 0) == fine_k_groups and size(b_scales, 1) == N and fine_k_groups > 1",
}
"""The kinds of scales in groups, each with its condition on b_scales."""
_SCALES = (
    *K_GROUPS,
    OneOf(
        "in_groups",
        {
            "channel": "rank(b_scales) != 2 or (size(b_scales, 0) != k_groups or size(b_scales, 1) != blocks) and "
            "(size(b_scales, 0) != fine_k_groups or size(b_scales, 1) != fine_blocks) and "
            "(size(b_scales, 0) != fine_k_groups or size(b_scales, 1) != N or fine_k_groups <= 1)",
            **{kind: f"rank(b_scales) == 2 and {test}" for kind, test in _IN_GROUPS.items()},
        },
        "{b_scales.name} has shape {b_scales.shape}",
    ),
    *KINDS,
    When(
        "in_groups == 0",
        (
            _values(
                "b_scales",
                "N",
                "columns",
                f"; or in groups along K: [{{k_groups}}, {{blocks}}] of {GROUP} gates, then ups, [{{fine_k_groups}}, {{fine_blocks}}] "
                f"of {FINE_GROUP}, [{{fine_k_groups}}, {{N}}] of each",
            ),
            _values("a_scales", "M", "rows"),
        ),
    ),
    When(
        "in_groups >= 1",
        (
            OF_GROUPS,
            Let("scales_of_row", "ceil(K, group)"),
            Require(
                "rank(a_scales) == 2 and size(a_scales, 0) == M and size(a_scales, 1) == scales_of_row",
                "{a_scales.name} has shape {a_scales.shape}, expected [{M}, {scales_of_row}]: a scale of each row for each {group} "
                "along K, as {b_scales.name} of {b_scales.shape} has them",
            ),
        ),
    ),
)
_GROUPS = When(
    "result == 2",
    (
        *WHOLE_GROUPS,
        Require(
            "rank(out_scales) == 2 and size(out_scales, 0) == M and size(out_scales, 1) == groups",
            "{out_scales.name} has shape {out_scales.shape}, expected [{M}, {groups}]: a scale for each {group} of a row; for "
            "one of a whole row store bfloat16, and quantise that",
        ),
        Require(
            "step(out_scales, 1) == 1 and (M <= 1 or step(out_scales, 0) >= groups) or "
            "step(out_scales, 0) == 1 and (groups <= 1 or step(out_scales, 1) >= M)",
            "{out_scales.name} has strides {out_scales.strides}: rows or columns of it must lie apart, and be without gaps",
        ),
    ),
)
_OP = Op(
    schema=SCALED_MM_ACT_QUANT,
    tensors=(
        Tensor("out", "M hidden", (DType.BF16, DType.E4M3), Layout.ROWS),
        Tensor("out_scales", "M groups", (DType.F32,)),
        Tensor("a", "M K", OPERANDS, Layout.ROWS),
        Tensor("b", "K N", Same("a"), Layout.COLUMNS),
        Tensor("a_scales", "M", (DType.F32,)),
        Tensor("b_scales", "N", (DType.F32,)),
        Tensor("static_scale", "1", (DType.F32,), Layout.VALUES),
    ),
    contract=(
        KNOWN,
        *NUMBERS,
        Check(Aspect.DTYPE, "a b out a_scales b_scales"),
        Check(Aspect.RANK, "out a b"),
        Check(Aspect.SHAPE, "a b"),
        _LIMIT,
        *HIDDEN,
        Check(Aspect.SHAPE, "out"),
        Check(Aspect.LAYOUT, "a b out"),
        *_SCALES,
        RESULTS,
        STATIC,
        _GROUPS,
        Check(Aspect.DEVICE, _ROLES),
        Check(Aspect.APART, _ROLES),
        CLASSES,
    ),
)
OPS = OpSet(ops=(_OP, *EXPERT_OPS))
