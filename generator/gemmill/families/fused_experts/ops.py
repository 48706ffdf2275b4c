"""The op, and its contract."""

from gemmill.families.fused_experts.config import CODED, GROUPS, HALVES
from gemmill.families.fused_experts.packed_ops import PACKED_OP
from gemmill.families.fused_experts.steps import (
    LIMITS,
    MULTIPLE,
    NUMBERS,
    OPERANDS,
    PARTS,
    ending,
)
from gemmill.families.fused_experts.workspace import EXPRESSIONS, expression_of
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

FUSED_EXPERTS = OpSchema(
    "fused_experts(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor? w13_scales, Tensor? w2_scales, Tensor topk_ids, "
    "Tensor topk_weights, str activation, float alpha, float limit, float beta, int order=0, bool weight_on_input=False, "
    "bool adds=False, Tensor? w13_bias=None, Tensor? w2_bias=None, Tensor? expert_map=None, Tensor(b!)? workspace=None) -> ()"
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
    *LIMITS,
)


def _by_rows(role: str, weights: str, rows: str) -> Require:
    return Require(
        f"dense({role}) == 1 and numel({role}) in (weights, {rows}_values) and (rank({role}) <= 2 or size({role}, 2) == 1)",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: for {{{weights}.name}} of {{{weights}.shape}} there are "
        f"scales of each expert ([{{weights}}]) or of each row ([{{weights}}, {{{rows}}}]), contiguous, or both weights have blocks",
    )


def _by_blocks(group: int) -> When:
    """Scales of w2, where those of w13 are of blocks of so many rows and columns."""
    return When(
        f"kind == {2 + GROUPS.index(group)}",
        (
            Require(
                f"inner % {group} == 0 and order < 2",
                f"{{w2.name}} has rows of {{inner}} and order is {{order}}: scales of blocks want rows of a multiple of {group}, and gates apart "
                "from ups (order 0 or 1)",
            ),
            Require(
                f"rank(w2_scales) == 3 and size(w2_scales, 0) == weights and size(w2_scales, 1) == hidden_{group} and size(w2_scales, 2) == inner_{group}",
                f"{{w2_scales.name}} has shape {{w2_scales.shape}}, expected [{{weights}}, {{hidden_{group}}}, {{inner_{group}}}]: a scale for each "
                f"{group} x {group} of {{w2.name}}, as w13_scales are of blocks",
            ),
        ),
    )


_SCALES: tuple[Step, ...] = (
    *(
        Let(f"{name}_{group}", f"ceil({size}, {group})")
        for group in GROUPS
        for name, size in (("gates", "gates"), ("hidden", "K"), ("inner", "inner"))
    ),
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
    *map(_by_blocks, GROUPS),
)
_KIND = OneOf(
    "kind",
    {
        "plain": "dtype(w13) == dtype(x) and w13_scales == 0 and w2_scales == 0",
        "rows": f"dtype(w13) in ({CODED.torch_name},) and w13_scales == 1 and w2_scales == 1 and (rank(w13_scales) <= 2 or size(w13_scales, 2) == 1 "
        "and size(w13_scales, 1) == gates)",
        **{
            f"blocks of {group}": f"dtype(w13) in ({CODED.torch_name},) and w13_scales == 1 and w2_scales == 1 and rank(w13_scales) == 3 and "
            f"size(w13_scales, 0) == weights and size(w13_scales, 1) == gates_{group} and size(w13_scales, 2) == hidden_{group}"
            for group in GROUPS
        },
    },
    "{w13.name} is {w13.dtype} of {w13.shape}: weights of {x.name}'s type have no scales; float8_e4m3fn has w13_scales and w2_scales, of experts, "
    "rows, or blocks of "
    + any_of([f"{group} x {group} ([{{weights}}, {{gates_{group}}}, {{hidden_{group}}}])" for group in GROUPS]),
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


_OP = Op(
    schema=FUSED_EXPERTS,
    tensors=(
        Tensor("out", "M K", Same("x"), Layout.ROWS),
        Tensor("x", "M K", HALVES, Layout.ROWS),
        Tensor("w13", "weights gates K", (CODED, *HALVES)),
        Tensor("w2", "weights K inner", Same("w13")),
        Tensor("w13_scales", "weights", (DType.F32,)),
        Tensor("w2_scales", "weights", (DType.F32,)),
        *OPERANDS,
    ),
    contract=(
        *NUMBERS,
        Check(Aspect.DTYPE, "x out w13 w2 topk_ids topk_weights"),
        *_SIZES,
        *_SCALES,
        _KIND,
        When("kind >= 1", _OF_CODES),
        Let("groups", "most(kind, 1) - 1"),
        Check(Aspect.LAYOUT, "x out topk_ids topk_weights"),
        *_rows_at_one_stride("w13"),
        *_rows_at_one_stride("w2"),
        *ending(
            *PARTS,
            Let("bytes_plain", expression_of(coded=False)),
            Let("bytes_coded", expression_of(coded=True)),
            needed={"kind == 0": "bytes_plain", "kind >= 1": "bytes_coded"},
        ),
    ),
)
OPS = OpSet(ops=(_OP, PACKED_OP))
