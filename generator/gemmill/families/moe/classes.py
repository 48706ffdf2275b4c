"""Classes of calls: what variants of each compute."""

from typing import NamedTuple

from gemmill.families.moe.biased_config import BIASED
from gemmill.families.moe.config import FP4_FORMATS, GROUP, OPERANDS, AnyConfig, GroupedConfig
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType, Format


def _codes(*dtypes: DType) -> dict[DType, int]:
    return {dtype: DTYPE_CODES[dtype.torch_name] for dtype in dtypes}


CLASSES = Classes(
    (
        ClassAxis(name="dtype", expression="dtype(a)", values=_codes(*OPERANDS)),
        ClassAxis(name="out_dtype", expression="dtype(out)", values=_codes(DType.BF16, DType.F16)),
        ClassAxis(name="group_size", expression="groups", values={0: 0, GROUP: 1}),
        ClassAxis(name="indexed", expression="indexed", values={False: 0, True: 1}),
        ClassAxis(name="format", expression="packed", values={None: 0, **{x: i for i, x in enumerate(FP4_FORMATS, 1)}}),
        # Packed weights have one kernel for both.
        ClassAxis(name="ends", expression="ended", values={False: 0, True: 1}),
    )
)


class _Served(NamedTuple):
    dtype: DType
    out_dtype: DType
    group_size: int
    indexed: bool
    format: Format | None
    ends: bool


def classes_of(config: AnyConfig) -> list[int]:
    """Numbers of the classes that a kernel serves: one, or two where it takes rows both in order and by their numbers."""
    ways = (config.indexed,) if isinstance(config, GroupedConfig) else (False, True)
    ends = isinstance(config, BIASED)
    return [
        CLASSES.number(_Served(config.dtype, config.out_dtype, config.group_size, indexed, config.format, ends))
        for indexed in ways
    ]
