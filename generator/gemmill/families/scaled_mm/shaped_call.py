"""The shaped call of a GEMM: all that a choice depends on."""

from gemmill.families.scaled_mm import NAME
from gemmill.families.scaled_mm.classes import Need, class_code, scales_code
from gemmill.families.scaled_mm.scales import groups_of_call, mn_major
from gemmill.family import OpSchema, ShapedCall
from gemmill.family.operand import Call, tma_alignment


def shaped_call_of(op: OpSchema, call: Call, own: int = 0) -> ShapedCall:
    """The class and the sizes of a legal call; `own` is the number of a user's epilogue."""
    out, a, b = call["out"], call["a"], call["b"]
    assert out is not None and a is not None and b is not None
    (m, k), n = a.shape, b.shape[1]
    lda = -(-k // 16) * 16 if m == 1 else a.strides[0]
    ldb = -(-k // 16) * 16 if n == 1 else b.strides[1]
    of_row = 16 // out.element_bytes
    ldd = -(-n // of_row) * of_row if m == 1 else out.strides[0]
    need = Need.SCALE  # a user's epilogue may have inputs of these names
    if not own and "azp_adj" in op.arguments:
        need = Need.AZP_ROW if call["azp"] is None else Need.AZP_TOKEN
    elif not own and call["bias"] is not None:
        need = Need.BIAS
    groups = None if own else groups_of_call(call)
    scales = scales_code(groups, mn_major=groups is not None and mn_major(call["a_scales"], call["b_scales"]))
    return ShapedCall(
        family=NAME,
        call_class=class_code(need, a.dtype, out.dtype, scales, own),
        sizes=(m, n, k),
        # A TMA store ends at a multiple of 16 bytes, not at n.
        alignments=(tma_alignment(a, lda, k), tma_alignment(b, ldb, k), tma_alignment(out, ldd | n, n)),
    )
