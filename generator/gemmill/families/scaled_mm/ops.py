"""The GEMM ops, and the contract of each."""

from gemmill.families.scaled_mm.config import RESULTS_OF
from gemmill.families.scaled_mm.own import BUILT_IN, op_of
from gemmill.families.scaled_mm.scales import scales_fault
from gemmill.family import (
    VLLM_PREFIX,
    Aspect,
    Check,
    Layout,
    Op,
    OpSchema,
    OpSet,
    Require,
    ResultOf,
    Same,
    Special,
    Step,
    Tensor,
    any_of,
)
from gemmill.family.operand import INT32_MAX
from gemmill.vocab import DType

SCALED_MM = OpSchema(
    "cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()"
)
SCALED_MM_AZP = OpSchema(
    "cutlass_scaled_mm_azp(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, "
    "Tensor? azp, Tensor? bias) -> ()"
)
GEMM_OPS = (SCALED_MM, SCALED_MM_AZP)
VLLM_OPS = tuple(OpSchema(VLLM_PREFIX + op.schema) for op in GEMM_OPS)
"""vLLM's ops of these names.

They refuse matrices whose rows or columns lie apart. They take scales along either dimension, for vLLM's callers hand
over those of b as [N, 1].
"""
OPERANDS_OF = {SCALED_MM.name: tuple(RESULTS_OF), SCALED_MM_AZP.name: (DType.S8,)}


_INT32 = Require(
    f"M <= {INT32_MAX} and N <= {INT32_MAX} and K <= {INT32_MAX}",
    f"M, N, K = {{M}}, {{N}}, {{K}}: each must be at most {INT32_MAX}",
)


def _packed(own: str) -> tuple[Step, ...]:
    return tuple(
        Require(
            f"{count} <= 1 or {length} == 0 or step({role}, {dim}) == {length}",
            f"vLLM's op requires packed operands; {told} is not packed: {{{role}.shape}} has strides {{{role}.strides}}, so its "
            f"{'columns' if dim else 'rows'} of {{{length}}} lie apart; make it contiguous, or call gemmill.{own}, which takes it",
        )
        for role, told, dim, count, length in (
            ("a", "A", 0, "M", "K"),
            ("b", "B", 1, "N", "K"),
            ("out", "output", 0, "M", "N"),
        )
    )


_OPERANDS = ("a", "b", "a_scales", "b_scales", "azp_adj", "azp", "bias")
_MATRICES: tuple[Step, ...] = (
    Check(Aspect.RANK, "out a b"),
    Check(Aspect.SHAPE, "a b out"),
    _INT32,
    Check(Aspect.DTYPE, "a b out"),
    Check(Aspect.LAYOUT, "a b out"),
)
_OTHERS: tuple[Step, ...] = (
    Check(Aspect.DTYPE, "a_scales b_scales"),
    Special("scales"),
    Check(Aspect.WHOLE, "bias azp_adj azp"),
    *(
        Check(aspect, f"out {operand}", unread="operands that are")
        for operand in _OPERANDS
        for aspect in (Aspect.DEVICE, Aspect.APART)
    ),
)


def _op(schema: OpSchema) -> Op:
    own = schema.name.removeprefix(VLLM_PREFIX)
    operands = OPERANDS_OF[own]
    tensors = (
        Tensor("out", "M N", ResultOf("a", RESULTS_OF), Layout.ROWS),
        Tensor("a", "M K", operands, Layout.ROWS),
        Tensor("b", "K N", Same("a"), Layout.COLUMNS, said=any_of([dtype.torch_name for dtype in operands])),
        Tensor("a_scales", "M", (DType.F32,)),
        Tensor("b_scales", "N", (DType.F32,)),
        Tensor("azp_adj", "N", (DType.S32,), Layout.VECTOR),
        Tensor("azp", "M", (DType.S32,), Layout.VECTOR),
        Tensor("bias", "N", Same("out"), Layout.VECTOR),
    )
    packed = _packed(own) if own != schema.name else ()
    return Op(
        schema=schema,
        tensors=tuple(tensor for tensor in tensors if tensor.role in schema.arguments),
        contract=(*_MATRICES, *packed, *_OTHERS),
        fixed={"groups": int(own == SCALED_MM.name), "either_way": int(own != schema.name)},
    )


_BUILT_IN = (op_of(built_in.traced) for built_in in BUILT_IN.values())
OPS = OpSet(ops=(*map(_op, (*GEMM_OPS, *VLLM_OPS)), *_BUILT_IN), specials={"scales": scales_fault})
