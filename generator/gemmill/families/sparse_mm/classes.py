"""Classes of calls: the computation of each one's variants."""

from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace

from gemmill.families.sparse_mm.config import OPERANDS, SparseConfig
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType, EpilogueKind


class Need(IntEnum):
    """A feature that the epilogue must have."""

    SCALE = 0
    BIAS = 1
    AZP_ROW = 2
    AZP_TOKEN = 3


_SERVED = {
    EpilogueKind.SCALED: (Need.SCALE,),
    EpilogueKind.SCALED_BIAS: (Need.SCALE, Need.BIAS),
    EpilogueKind.SCALED_AZP: (Need.SCALE, Need.BIAS, Need.AZP_ROW),
    EpilogueKind.SCALED_AZP_PER_TOKEN: tuple(Need),
}
"""The needs that each epilogue serves. An operand that is not given reads as zero, or azp as one.

So each epilogue serves the calls of those before it.
"""


def _codes(*dtypes: DType) -> dict[DType, int]:
    return {dtype: DTYPE_CODES[dtype.torch_name] for dtype in dtypes}


CLASSES = Classes(
    (
        ClassAxis(name="dtype", expression="dtype(a)", values=_codes(*OPERANDS)),
        ClassAxis(name="out_dtype", expression="dtype(out)", values=_codes(DType.BF16, DType.F16)),
        ClassAxis(name="need", expression="need", values={need: need.value for need in Need}),
    )
)


def needs_of(epilogue: EpilogueKind) -> tuple[Need, ...]:
    """The needs that an epilogue serves."""
    return _SERVED[epilogue]


def classes_of(config: SparseConfig) -> Iterator[int]:
    """The classes of calls that a kernel serves."""
    for need in needs_of(config.epilogue):
        yield CLASSES.number(SimpleNamespace(dtype=config.operand_dtype, out_dtype=config.out_dtype, need=need))
