"""Classes of calls: what variants of each compute."""

from typing import NamedTuple

from gemmill.families.gated_mm.config import GROUP, Activation, AnyConfig, GatedConfig, Result
from gemmill.families.gated_mm.int8_config import ALL_OPERANDS
from gemmill.family import ClassAxis, Classes
from gemmill.family.operand import DTYPE_CODES
from gemmill.vocab import DType

CLASSES = Classes(
    (
        ClassAxis(
            name="dtype",
            expression="dtype(a)",
            values={dtype: DTYPE_CODES[dtype.torch_name] for dtype in ALL_OPERANDS},
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


class _Served(NamedTuple):
    dtype: DType
    group_size: int
    by_expert: bool
    indexed: bool
    result: Result
    activation: Activation


def classes_of(config: AnyConfig) -> list[int]:
    """Numbers of the classes of calls that a kernel serves: one, or one of each activation where a call says which."""
    activations = (config.activation,) if isinstance(config, GatedConfig) else Activation
    return [
        CLASSES.number(
            _Served(config.dtype, config.group_size, config.by_expert, config.indexed, config.result, activation)
        )
        for activation in activations
    ]
