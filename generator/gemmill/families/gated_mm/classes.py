"""Classes of calls: the computation of each one's variants."""

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP, OPERANDS, Activation, AnyConfig, Result
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES

RESULTS = (Result.BF16, Result.STATIC, Result.GROUP)
CLASSES = Classes(
    (
        ClassAxis(
            name="dtype",
            expression="dtype(a)",
            values={dtype: DTYPE_CODES[dtype.torch_name] for dtype in OPERANDS},
        ),
        ClassAxis(name="group_size", expression="group_sizes", values={0: 0, GROUP: 1, FINE_GROUP: 2}),
        ClassAxis(name="rows_scaled", expression="rows_scaled", values={False: 0, True: 1}),
        ClassAxis(name="by_expert", expression="of_experts", values={False: 0, True: 1}),
        ClassAxis(name="indexed", expression="indexed", values={False: 0, True: 1}),
        # Results in groups are those of the operands' size.
        ClassAxis(name="result", expression="result", values={x: i for i, x in enumerate(RESULTS)}),
        ClassAxis(
            name="activation",
            expression="activation_index",
            values={activation: i for i, activation in enumerate(Activation)},
        ),
    )
)


def classes_of(config: AnyConfig) -> list[int]:
    """Numbers of the classes of calls that a kernel serves: one, or one of each activation where a call says which."""
    operands, epilogue = config.operands, config.epilogue
    return [
        CLASSES.number_of(
            dtype=operands.dtype,
            group_size=operands.group_size,
            rows_scaled=operands.rows_scaled,
            by_expert=operands.by_expert,
            indexed=operands.indexed,
            result=Result.GROUP if epilogue.result.group else epilogue.result,
            activation=activation,
        )
        for activation in epilogue.activations
    ]
