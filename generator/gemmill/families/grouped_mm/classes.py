"""Classes of calls: the computation of each one's variants."""

from gemmill.families.grouped_mm.config import FP4_FORMATS, OPERANDS, AnyConfig
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType


def _codes(*dtypes: DType) -> dict[DType, int]:
    return {dtype: DTYPE_CODES[dtype.torch_name] for dtype in dtypes}


CLASSES = Classes(
    (
        ClassAxis(name="dtype", expression="dtype(a)", values=_codes(*OPERANDS)),
        ClassAxis(name="out_dtype", expression="dtype(out)", values=_codes(DType.BF16, DType.F16)),
        ClassAxis(name="group_size", expression="group_sizes", values={0: 0, 128: 1, 32: 2}),
        ClassAxis(name="rows_scaled", expression="rows_scaled", values={False: 0, True: 1}),
        ClassAxis(name="indexed", expression="indexed", values={False: 0, True: 1}),
        ClassAxis(name="format", expression="packed", values={None: 0, **{x: i for i, x in enumerate(FP4_FORMATS, 1)}}),
        # Packed weights have one kernel for both.
        ClassAxis(name="biased", expression="ended", values={False: 0, True: 1}),
    )
)


def classes_of(config: AnyConfig) -> list[int]:
    """Numbers of the classes that a kernel serves: one, or two where it takes rows both in order and by their numbers."""
    return [
        CLASSES.number_of(
            dtype=config.operand_dtype,
            out_dtype=config.out_dtype,
            group_size=config.group_size,
            rows_scaled=config.rows_scaled,
            indexed=indexed,
            format=config.format,
            biased=config.biased,
        )
        for indexed in config.gathers
    ]
