"""The op for packed 4-bit weights, and its contract."""

from gemmill.families.fused_experts.packing import FIRST_CODED, PACKINGS
from gemmill.families.fused_experts.steps import LIMITS, MULTIPLE, NUMBERS, OPERANDS, PARTS, ending
from gemmill.families.fused_experts.workspace import EXPRESSIONS, PACKED, packed_expression
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, Require, Same, Step, Tensor, any_of
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.vocab import DType

FUSED_FP4_EXPERTS = OpSchema(
    "fused_fp4_experts(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor w13_scales, Tensor w2_scales, Tensor topk_ids, "
    "Tensor topk_weights, str activation, float alpha, float limit, float beta, int format, int order=2, bool weight_on_input=False, "
    "bool adds=False, Tensor? w13_bias=None, Tensor? w2_bias=None, Tensor? expert_map=None, Tensor(b!)? workspace=None) -> ()"
)
PACKED_AS: tuple[Step, ...] = (
    Let("kind", "format // 2"),
    Let("odd", "format - 2 * kind"),
    Let("group", "32 - 16 * most(0, 1 - format * (5 - format))"),
    Let("block_columns", f"{SIDE} + {SIDE} * (kind // 2)"),
    Let("block_bytes", "2304 - 2048 * kind + 1536 * kind * kind + odd * (256 - 384 * most(0, 1 - kind))"),
)
"""The facts of PACKINGS for each format, as contracts can compute them: a test compares the two."""
_NAMES = any_of([f"{i} ({packing})" for i, packing in enumerate(PACKINGS)])


_FORMAT: tuple[Step, ...] = (
    Require(f"format in {tuple(range(len(PACKINGS)))}", f"format is {{format}}, expected {_NAMES}"),
    Let("packed", "format + 1"),
    *PACKED_AS,
    Require(
        "order == 2",
        "order is {order}: packed weights have each gate before its up (2), as "
        "gemmill.quantize.prepack_gated_experts weaves them",
    ),
)
_SIZES: tuple[Step, ...] = (
    Check(Aspect.RANK, "out x w13_scales w2_scales topk_ids topk_weights"),
    Check(Aspect.SHAPE, "x out w13_scales w2_scales"),
    Let("inner", "gates // 2"),
    Require(
        f"gates % {2 * MULTIPLE} == 0 and gates >= {2 * MULTIPLE}",
        f"{{w13_scales.name}} is {{w13_scales.shape}}, bases of {{gates}} gates and ups: expected a multiple of {2 * MULTIPLE}",
    ),
    Require(
        "K % group == 0 and inner % group == 0",
        "rows of w13 and w2 have {K} and {inner} elements, which are not both multiples of the format's group of {group}",
    ),
    *LIMITS,
)


def _blocks(role: str, rows: str, columns: str) -> tuple[Step, ...]:
    """Steps for a role's packed weights: blocks of 64 rows, with K padded to a stage."""
    return (
        Let(f"{role}_tiles", f"ceil({rows}, {SIDE})"),
        Let(f"{role}_blocks", f"up({columns}, {STAGE_COLUMNS}) // block_columns"),
        Require(
            f"rank({role}) == 4 and size({role}, 0) == weights and size({role}, 1) == {role}_tiles and size({role}, 2) == {role}_blocks "
            f"and size({role}, 3) == block_bytes",
            f"{{{role}.name}} is {{{role}.shape}}, expected [{{weights}}, {{{role}_tiles}}, {{{role}_blocks}}, {{block_bytes}}] for experts "
            f"of {{{rows}}} x {{{columns}}} weights packed by gemmill.quantize.prepack_gated_experts",
        ),
        Require(f"dense({role}) == 1", f"{{{role}.name}} has strides {{{role}.strides}}: weights must be contiguous"),
        Require(
            f"dense({role}_scales) == 1",
            f"{{{role}_scales.name}} has strides {{{role}_scales.strides}}: bases must be contiguous",
        ),
    )


PACKED_OP = Op(
    schema=FUSED_FP4_EXPERTS,
    tensors=(
        Tensor("out", "M K", Same("x"), Layout.ROWS),
        Tensor("x", "M K", (DType.BF16,), Layout.ROWS),
        Tensor("w13", "weights w13_tiles w13_blocks block_bytes", (DType.U8,)),
        Tensor("w2", "weights w2_tiles w2_blocks block_bytes", (DType.U8,)),
        Tensor("w13_scales", "weights gates", (DType.F32,)),
        Tensor("w2_scales", "weights K", (DType.F32,)),
        *OPERANDS,
    ),
    contract=(
        *NUMBERS,
        *_FORMAT,
        Check(Aspect.DTYPE, "x out w13 w2 w13_scales w2_scales topk_ids topk_weights"),
        *_SIZES,
        *_blocks("w13", "gates", "K"),
        *_blocks("w2", "K", "inner"),
        Check(Aspect.LAYOUT, "x out topk_ids topk_weights"),
        *ending(
            Let("inner_groups", EXPRESSIONS["inner_groups"]),
            *PARTS,
            Let("packed_bytes", PACKED),
            Let("bytes_packed", packed_expression(coded=False)),
            Let("bytes_folded", packed_expression(coded=True)),
            needed={f"format < {FIRST_CODED}": "bytes_packed", f"format >= {FIRST_CODED}": "bytes_folded"},
        ),
    ),
)
