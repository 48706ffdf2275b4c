"""The GEMMs of 2:4 sparse weights, and the contract of each."""

from gemmill.families.sparse_mm.classes import CLASSES
from gemmill.families.sparse_mm.config import OPERANDS
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, OpSet, Require, ResultOf, Same, Step, Tensor
from gemmill.family.operand import MOST_OF_TMA
from gemmill.gemm.config import RESULTS_OF
from gemmill.vocab import DType

SPARSE_MM = OpSchema(
    "cutlass_scaled_sparse_mm(Tensor(a!) out, Tensor a, Tensor bt_nzs, Tensor bt_meta, Tensor a_scales, Tensor b_scales, "
    "Tensor? bias=None) -> ()"
)
SPARSE_MM_AZP = OpSchema(
    "cutlass_scaled_sparse_mm_azp(Tensor(a!) out, Tensor a, Tensor bt_nzs, Tensor bt_meta, Tensor a_scales, Tensor b_scales, "
    "Tensor azp_adj, Tensor? azp=None, Tensor? bias=None) -> ()"
)
MOST_WEIGHT_ROWS = 2**24 - 64
"""The most rows of weights.

CUTLASS counts in 32 bits how far a block of metadata lies from the next along K: 128 columns of all rows.
"""
_SPARSE: tuple[Step, ...] = (
    Check(Aspect.RANK, "out a bt_nzs bt_meta"),
    Check(Aspect.SHAPE, "a bt_nzs out"),
    Require(
        f"M <= {MOST_OF_TMA} and N <= {MOST_WEIGHT_ROWS} and K <= {MOST_OF_TMA}",
        f"M, N, K = {{M}}, {{N}}, {{K}}: M and K must be at most {MOST_OF_TMA}, and N {MOST_WEIGHT_ROWS}",
    ),
    Require("K % 4 == 0", "{a.name} has {K} columns: of 2:4 sparse weights K is a multiple of 4"),
    Let("kept", "size(bt_nzs, 1)"),
    Require(
        "2 * kept >= K and 2 * kept < K + 32",
        "{bt_nzs.name} has shape {bt_nzs.shape}, expected [N, K/2] for K = {K}, with rows padded to 16 bytes at most: "
        "cutlass_sparse_compress makes it",
    ),
    Check(Aspect.DTYPE, "a bt_nzs bt_meta out a_scales b_scales"),
    Check(Aspect.SHAPE, "bt_meta"),
    Check(Aspect.LAYOUT, "a bt_nzs out"),
    Require(
        "dense(bt_meta) == 1",
        "{bt_meta.name} has strides {bt_meta.strides}: metadata lies without gaps, as cutlass_sparse_compress returns it",
    ),
)


def _scale(role: str, of: str, what: str) -> Require:
    return Require(
        f"numel({role}) in (1, {of}) and dense({role}) == 1",
        f"{{{role}.name}} has shape {{{role}.shape}} and strides {{{role}.strides}}: expected one value, or one for each of {{{of}}} "
        f"{what}, without gaps",
    )


def _op(schema: OpSchema, operands: tuple[DType, ...], need: str) -> Op:
    tensors = (
        Tensor("out", "M N", ResultOf("a", RESULTS_OF), Layout.ROWS),
        Tensor("a", "M K", operands, Layout.ROWS),
        Tensor("bt_nzs", "N values", Same("a"), Layout.ROWS),
        Tensor("bt_meta", "up(N,64) up(K,128)//8", (DType.U8,)),
        Tensor("a_scales", "M", (DType.F32,)),
        Tensor("b_scales", "N", (DType.F32,)),
        Tensor("azp_adj", "N", (DType.S32,), Layout.VECTOR),
        Tensor("azp", "M", (DType.S32,), Layout.VECTOR),
        Tensor("bias", "N", Same("out"), Layout.VECTOR),
    )
    roles = " ".join(schema.arguments)
    return Op(
        schema=schema,
        tensors=tuple(tensor for tensor in tensors if tensor.role in schema.arguments),
        contract=(
            *_SPARSE,
            _scale("a_scales", "M", "rows"),
            _scale("b_scales", "N", "columns"),
            Check(Aspect.WHOLE, "azp_adj azp bias"),
            Let("need", need),
            Check(Aspect.DEVICE, roles),
            Check(Aspect.APART, roles),
            CLASSES,
        ),
    )


OPS = OpSet(ops=(_op(SPARSE_MM, OPERANDS, "bias"), _op(SPARSE_MM_AZP, (DType.S8,), "2 + azp")))
NAMES = tuple(op.schema.name for op in OPS.ops)
