"""Classes of calls: one config serves each, whose fields these are."""

from gemmill.families.quant.config import IN_DTYPES, OUT_DTYPES, QUANT_GROUP_SIZES, Activation, ScaleFormat, Scaling
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType

CODED = {x: DTYPE_CODES[x.torch_name] for x in OUT_DTYPES} | {DType.E2M1: 2, DType.E3M2: 3}
"""Numbers of code types: torch's of the dtypes that it has."""
CLASSES = Classes(
    (
        ClassAxis(name="scaling", expression="scaling", values={x: i for i, x in enumerate(Scaling)}),
        ClassAxis(name="in_dtype", expression="valued", values={x: DTYPE_CODES[x.torch_name] for x in IN_DTYPES}),
        ClassAxis(name="out_dtype", expression="coded", values=CODED),
        ClassAxis(name="activation", expression="chosen", values={x: i for i, x in enumerate(Activation)}),
        ClassAxis(
            name="group_size", expression="built_group", values={size: size for size in (0, 16, *QUANT_GROUP_SIZES)}
        ),
        ClassAxis(name="scale_format", expression="scale_format", values={x: i for i, x in enumerate(ScaleFormat)}),
        ClassAxis(name="symmetric", expression="azp", values={True: 0, False: 1}),
        ClassAxis(name="vllm", expression="of_vllm", values={False: 0, True: 1}),
        ClassAxis(name="row_sums", expression="row_sums", values={False: 0, True: 1}),
    )
)
