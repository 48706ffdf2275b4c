"""Classes of calls: the computation of each one's variants."""

from gemmill.families.blockscaled.pairs import Pair
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType

CLASSES = Classes(
    (
        ClassAxis(name="pair", expression="pair", values={pair: i for i, pair in enumerate(Pair)}),
        ClassAxis(
            name="out_dtype",
            expression="dtype(out)",
            values={x: DTYPE_CODES[x.torch_name] for x in (DType.BF16, DType.F16)},
        ),
        ClassAxis(name="prepacked", expression="prepacked", values={False: 0, True: 1}),
        ClassAxis(name="grouped", expression="grouped", values={False: 0, True: 1}),
    )
)
