"""Classes of calls: the computation of each one's variants."""

from gemmill.families.gated_mm.config import GROUP, OPERANDS, Activation, AnyConfig, Result
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES

CLASSES = Classes(
    (
        ClassAxis(
            name="dtype",
            expression="dtype(a)",
            values={dtype: DTYPE_CODES[dtype.torch_name] for dtype in OPERANDS},
        ),
        ClassAxis(name="group_size", expression="in_groups", values={0: 0, GROUP: 1}),
        ClassAxis(name="by_expert", expression="of_experts", values={False: 0, True: 1}),
        ClassAxis(name="indexed", expression="indexed", values={False: 0, True: 1}),
        ClassAxis(name="result", expression="result", values={result: i for i, result in enumerate(Result)}),
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
            by_expert=operands.by_expert,
            indexed=operands.indexed,
            result=epilogue.result,
            activation=activation,
        )
        for activation in epilogue.activations
    ]
