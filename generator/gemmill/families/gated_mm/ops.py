"""The op, and what must hold for a call."""

from gemmill.families.gated_mm.classes import CLASSES
from gemmill.families.gated_mm.config import GROUP, OPERANDS, Activation
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSchema, OpSet, Require, Same, Tensor, When, any_of
from gemmill.family.operand import MOST_OF_TMA
from gemmill.formats.layout import GATE_UP_ROWS
from gemmill.vocab import DType

SCALED_MM_ACT_QUANT = OpSchema(
    "scaled_mm_act_quant(Tensor(a!) out, Tensor(b!)? out_scales, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "str activation, float alpha, float limit, float beta, Tensor? static_scale=None) -> ()"
)
_ROLES = "out out_scales a b a_scales b_scales static_scale"
_WORDS = tuple(activation.spelled for activation in Activation)
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


_NUMBERS = (
    When(
        f"activation_index < {list(Activation).index(Activation.SWIGLU)}",
        (
            Require(
                "alpha == 1 and limit == 1e999 and beta == 0",
                "alpha, limit, beta = {alpha}, {limit}, {beta} with activation {activation!r}: only 'swiglu' has them, else they "
                "are 1, inf, 0",
            ),
        ),
    ),
    Require("limit > 0", "limit is {limit}, expected a number above 0, or inf for none"),
)
_RESULTS = OneOf(
    "result",
    {
        "bf16": "dtype(out) == bfloat16 and out_scales == 0 and static_scale == 0",
        "static": "dtype(out) == float8_e4m3fn and out_scales == 0 and static_scale == 1",
        "groups": "dtype(out) == float8_e4m3fn and out_scales == 1 and static_scale == 0",
    },
    "{out.name} is {out.dtype}: bfloat16 has neither out_scales nor static_scale, float8_e4m3fn has one of the two",
)
_SCALES = (
    Let("k_groups", f"ceil(K, {GROUP})"),
    Let("blocks", f"2 * ceil(hidden, {GROUP})"),
    OneOf(
        "in_groups",
        {
            "channel": "rank(b_scales) != 2 or size(b_scales, 0) != k_groups or size(b_scales, 1) != blocks",
            "groups": "rank(b_scales) == 2",
        },
        "{b_scales.name} has shape {b_scales.shape}",
    ),
    When(
        "in_groups == 0",
        (
            _values(
                "b_scales",
                "N",
                "columns",
                f"; or [{{k_groups}}, {{blocks}}], for {GROUP} along K of {GROUP} gates, then ups",
            ),
            _values("a_scales", "M", "rows"),
        ),
    ),
    When(
        "in_groups == 1",
        (
            Require(
                "rank(a_scales) == 2 and size(a_scales, 0) == M and size(a_scales, 1) == k_groups",
                f"{{a_scales.name}} has shape {{a_scales.shape}}, expected [{{M}}, {{k_groups}}]: a scale of each row for each {GROUP} "
                "along K, as {b_scales.name} of {b_scales.shape} has them",
            ),
        ),
    ),
)
_STATIC = When("result == 1", (Check(Aspect.WHOLE, "static_scale"),))
_GROUPS = When(
    "result == 2",
    (
        Require(
            f"hidden % {GROUP} == 0",
            f"{{b.name}} is {{b.shape}}, {{hidden}} results: scales are of {GROUP} each, store bfloat16 or give static_scale",
        ),
        Check(Aspect.DTYPE, "out_scales"),
        Require(
            "rank(out_scales) == 2 and size(out_scales, 0) == M and size(out_scales, 1) == groups",
            f"{{out_scales.name}} has shape {{out_scales.shape}}, expected [{{M}}, {{groups}}]: a scale for each {GROUP} of a row; for "
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
        Require(
            f"activation in {_WORDS}", f"activation is {{activation!r}}, expected {any_of(list(map(repr, _WORDS)))}"
        ),
        *_NUMBERS,
        Check(Aspect.DTYPE, "a b out a_scales b_scales"),
        Check(Aspect.RANK, "out a b"),
        Check(Aspect.SHAPE, "a b"),
        _LIMIT,
        Require(
            f"N % {GATE_UP_ROWS} == 0",
            f"{{b.name}} is {{b.shape}}: gates and ups are packed in blocks of {GATE_UP_ROWS} columns by gemmill.quantize.prepack_gate_up",
        ),
        Let("hidden", "N // 2"),
        Let("groups", f"hidden // {GROUP}"),
        Check(Aspect.SHAPE, "out"),
        Check(Aspect.LAYOUT, "a b out"),
        *_SCALES,
        _RESULTS,
        _STATIC,
        _GROUPS,
        Check(Aspect.DEVICE, _ROLES),
        Check(Aspect.APART, _ROLES),
        CLASSES,
    ),
)
OPS = OpSet(ops=(_OP,))
