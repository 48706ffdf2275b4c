"""The op, and what must hold for a call."""

from gemmill.families.fused_moe.classes import CLASSES
from gemmill.families.fused_moe.config import CODED, GROUP, HALVES, MOST_WEIGHTS
from gemmill.families.fused_moe.workspace import EXPRESSIONS, SHARED, expression_of
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
from gemmill.vocab import DType
from gemmill.vocab.activation import Activation

FUSED_EXPERTS = OpSchema(
    "fused_experts(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor? w13_scales, Tensor? w2_scales, Tensor topk_ids, "
    "Tensor topk_weights, str activation, float alpha, float limit, float beta, int order=0, bool weight_on_input=False, "
    "bool adds=False, Tensor? w13_bias=None, Tensor? w2_bias=None, Tensor? expert_map=None, Tensor(b!)? workspace=None) -> ()"
)
MULTIPLE = 16
"""Of which the lengths of rows are multiples: of 16 bytes, and of 16 rows of an instruction."""
MOST_PAIRS, MOST_SIZE = 2**30, 2**24
_ROLES = "out x w13 w2 w13_scales w2_scales topk_ids topk_weights w13_bias w2_bias expert_map workspace"
_WORDS = tuple(activation.spelled for activation in Activation)
_NUMBERS = (
    Require(f"activation in {_WORDS}", f"activation is {{activation!r}}, expected {any_of(list(map(repr, _WORDS)))}"),
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
    Require(
        "order in (0, 1, 2)",
        "order is {order}, expected 0 (gates, then ups), 1 (ups, then gates) or 2 (each gate before its up)",
    ),
)
_SIZES = (
    Check(Aspect.RANK, "out x w13 w2 topk_ids topk_weights"),
    Check(Aspect.SHAPE, "x out w13 w2"),
    Require(
        "gates == 2 * inner",
        "{w13.name} is {w13.shape} and {w2.name} is {w2.shape}: gates and ups are {gates} rows, expected 2 * {inner}, for "
        "{w2.name} has rows of {inner}",
    ),
    Require(
        f"K % {MULTIPLE} == 0 and inner % {MULTIPLE} == 0 and inner >= {MULTIPLE}",
        f"rows of {{w13.name}} and {{w2.name}} have {{K}} and {{inner}} elements: kernels read whole pieces of {MULTIPLE}, pad weights "
        "with zeros",
    ),
    Require(
        f"weights >= 1 and weights <= {MOST_WEIGHTS}",
        f"{{w13.name}} is {{w13.shape}}, weights of {{weights}} experts: a kernel sorts by 1 to {MOST_WEIGHTS}",
    ),
    Check(Aspect.SHAPE, "topk_ids topk_weights"),
    Require("topk >= 1", "{topk_ids.name} is {topk_ids.shape}: each token has one expert or more"),
    Require(
        "expert_map == 1 or topk <= weights",
        "{topk_ids.name} is {topk_ids.shape}, {topk} experts of each token, and there are {weights}: give an expert_map where others "
        "are elsewhere",
    ),
    Require(
        f"M * topk <= {MOST_PAIRS} and K <= {MOST_SIZE} and inner <= {MOST_SIZE}",
        f"pairs, hidden, inner = {{M}} * {{topk}}, {{K}}, {{inner}}: there are at most {MOST_PAIRS} pairs, and {MOST_SIZE} elements of a row",
    ),
)


def _by_rows(role: str, weights: str, rows: str) -> Require:
    return Require(
        f"dense({role}) == 1 and numel({role}) in (weights, {rows}_values) and (rank({role}) <= 2 or size({role}, 2) == 1)",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: for {{{weights}.name}} of {{{weights}.shape}} there are "
        f"scales of each expert ([{{weights}}]) or of each row ([{{weights}}, {{{rows}}}]), contiguous, or both weights have blocks",
    )


def _by_blocks(role: str, weights: str, rows: str, columns: str) -> Require:
    return Require(
        f"rank({role}) == 3 and size({role}, 0) == weights and size({role}, 1) == {rows} and size({role}, 2) == {columns}",
        f"{{{role}.name}} has shape {{{role}.shape}}, expected [{{weights}}, {{{rows}}}, {{{columns}}}]: a scale for each {GROUP} x {GROUP} of "
        f"{{{weights}.name}}, as w13_scales are of blocks",
    )


_SCALES: tuple[Step, ...] = (
    Let("gate_groups", f"ceil(gates, {GROUP})"),
    Let("hidden_groups", f"ceil(K, {GROUP})"),
    Let("inner_groups", EXPRESSIONS["inner_groups"]),
    Let("gates_values", "weights * gates"),
    Let("K_values", "weights * K"),
)
_OF_CODES: tuple[Step, ...] = (
    Check(Aspect.DTYPE, "w13_scales w2_scales"),
    When(
        "kind == 1",
        (_by_rows("w13_scales", "w13", "gates"), _by_rows("w2_scales", "w2", "K")),
    ),
    When(
        "kind == 2",
        (
            Require(
                f"inner % {GROUP} == 0 and order < 2",
                f"{{w2.name}} has rows of {{inner}} and order is {{order}}: scales of blocks want rows of a multiple of {GROUP}, and gates apart "
                "from ups (order 0 or 1)",
            ),
            _by_blocks("w2_scales", "w2", "hidden_groups", "inner_groups"),
        ),
    ),
)
_KIND = OneOf(
    "kind",
    {
        "plain": "dtype(w13) == dtype(x) and w13_scales == 0 and w2_scales == 0",
        "rows": f"dtype(w13) in ({CODED.torch_name},) and w13_scales == 1 and w2_scales == 1 and (rank(w13_scales) <= 2 or size(w13_scales, 2) == 1 "
        "and size(w13_scales, 1) == gates)",
        "blocks": f"dtype(w13) in ({CODED.torch_name},) and w13_scales == 1 and w2_scales == 1 and rank(w13_scales) == 3 and "
        "size(w13_scales, 0) == weights and size(w13_scales, 1) == gate_groups and size(w13_scales, 2) == hidden_groups",
    },
    f"{{w13.name}} is {{w13.dtype}} of {{w13.shape}}: weights of {{x.name}}'s type have no scales; float8_e4m3fn has w13_scales and w2_scales, of experts, "
    f"rows, or blocks of {GROUP} x {GROUP} ([{{weights}}, {{gate_groups}}, {{hidden_groups}}])",
)


def _rows_at_one_stride(role: str) -> tuple[Step, ...]:
    return (
        Let(f"{role}_rows", f"row_stride({role})"),
        Require(
            f"{role}_rows >= 0",
            f"{{{role}.name}} of {{{role}.shape}} has strides {{{role}.strides}}: its last stride must be 1, and rows must follow one another "
            "at one stride",
        ),
    )


def _bias(role: str, columns: str) -> Step:
    return When(
        role,
        (
            Check(Aspect.DTYPE, role),
            Require(
                f"rank({role}) == 2 and size({role}, 0) == weights and size({role}, 1) == {columns} and dense({role}) == 1",
                f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}, expected [{{weights}}, {{{columns}}}], contiguous",
            ),
        ),
    )


_MAP = When(
    "expert_map",
    (
        Check(Aspect.DTYPE, "expert_map"),
        Require(
            "longer(expert_map) <= 1 and dense(expert_map) == 1",
            "{expert_map.name} has shape {expert_map.shape} and strides {expert_map.strides}: expected one number for each expert, contiguous",
        ),
    ),
)
_WORKSPACE: tuple[Step, ...] = (
    *(Let(name, said) for name, said in EXPRESSIONS.items() if name != "inner_groups"),
    Let("shared_bytes", SHARED),
    Let("bytes_plain", expression_of(coded=False)),
    Let("bytes_coded", expression_of(coded=True)),
    When(
        "workspace",
        (
            Check(Aspect.DTYPE, "workspace"),
            Require(
                "longer(workspace) <= 1 and dense(workspace) == 1",
                "{workspace.name} has shape {workspace.shape} and strides {workspace.strides}: expected bytes without gaps",
            ),
            When(
                "kind == 0",
                (
                    Require(
                        "numel(workspace) >= bytes_plain",
                        "{workspace.name} has {workspace.shape} bytes, expected {bytes_plain} or more: "
                        "gemmill.fused_experts_workspace says how many",
                    ),
                ),
            ),
            When(
                "kind >= 1",
                (
                    Require(
                        "numel(workspace) >= bytes_coded",
                        "{workspace.name} has {workspace.shape} bytes, expected {bytes_coded} or more: "
                        "gemmill.fused_experts_workspace says how many",
                    ),
                ),
            ),
        ),
    ),
)
_OP = Op(
    schema=FUSED_EXPERTS,
    tensors=(
        Tensor("out", "M K", Same("x"), Layout.ROWS),
        Tensor("x", "M K", HALVES, Layout.ROWS),
        Tensor("w13", "weights gates K", (CODED, *HALVES)),
        Tensor("w2", "weights K inner", Same("w13")),
        Tensor("w13_scales", "weights", (DType.F32,)),
        Tensor("w2_scales", "weights", (DType.F32,)),
        Tensor("topk_ids", "M topk", (DType.S32, DType.S64), Layout.ROWS),
        Tensor("topk_weights", "M topk", (DType.F32,), Layout.ROWS),
        Tensor("w13_bias", "weights gates", Same("x")),
        Tensor("w2_bias", "weights K", Same("x")),
        Tensor("expert_map", "weights", (DType.S32,)),
        Tensor("workspace", "weights", (DType.U8,)),
    ),
    contract=(
        *_NUMBERS,
        Check(Aspect.DTYPE, "x out w13 w2 topk_ids topk_weights"),
        *_SIZES,
        *_SCALES,
        _KIND,
        When("kind >= 1", _OF_CODES),
        Let("groups", "kind // 2"),
        Check(Aspect.LAYOUT, "x out topk_ids topk_weights"),
        *_rows_at_one_stride("w13"),
        *_rows_at_one_stride("w2"),
        _bias("w13_bias", "gates"),
        _bias("w2_bias", "K"),
        _MAP,
        *_WORKSPACE,
        Check(Aspect.DEVICE, _ROLES),
        Check(Aspect.APART, _ROLES),
        CLASSES,
    ),
)
OPS = OpSet(ops=(_OP,))
