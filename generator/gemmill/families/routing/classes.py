"""Classes of calls: one config serves each."""

from gemmill.families.routing.config import HALVES
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES

CLASSES = Classes(
    (ClassAxis(name="dtype", expression="dtype(x)", values={x: DTYPE_CODES[x.torch_name] for x in HALVES}),)
)
