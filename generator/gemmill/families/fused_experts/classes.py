"""Classes of calls: the computation of each one's variants."""

from gemmill.families.fused_experts.config import CODED, GROUPS, HALVES
from gemmill.families.fused_experts.packing import PACKINGS
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType


def _codes(*dtypes: DType) -> dict[DType, int]:
    return {dtype: DTYPE_CODES[dtype.torch_name] for dtype in dtypes}


CLASSES = Classes(
    (
        ClassAxis(name="dtype", expression="dtype(w13)", values=_codes(DType.U8, CODED, *HALVES)),
        ClassAxis(name="out_dtype", expression="dtype(x)", values=_codes(*HALVES)),
        ClassAxis(name="group_size", expression="groups", values={0: 0, **{x: i for i, x in enumerate(GROUPS, 1)}}),
        ClassAxis(name="packing", expression="packed", values={None: 0, **{x: i for i, x in enumerate(PACKINGS, 1)}}),
    )
)
