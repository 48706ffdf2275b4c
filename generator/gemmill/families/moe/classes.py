"""Classes of calls: what variants of each compute."""

from gemmill.families.moe.config import GROUP, OPERANDS
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType


def _codes(*dtypes: DType) -> dict[DType, int]:
    return {dtype: DTYPE_CODES[dtype.torch_name] for dtype in dtypes}


CLASSES = Classes(
    (
        ClassAxis(name="dtype", expression="dtype(a)", values=_codes(*OPERANDS)),
        ClassAxis(name="out_dtype", expression="dtype(out)", values=_codes(DType.BF16, DType.F16)),
        ClassAxis(name="group_size", expression="groups", values={0: 0, GROUP: 1}),
        ClassAxis(name="indexed", expression="indexed", values={False: 0, True: 1}),
    )
)
