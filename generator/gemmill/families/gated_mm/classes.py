"""Classes of calls: what variants of each compute."""

from gemmill.families.gated_mm.config import Activation, Result
from gemmill.family import ClassAxis, Classes

CLASSES = Classes(
    (
        ClassAxis(name="result", expression="result", values={result: i for i, result in enumerate(Result)}),
        ClassAxis(
            name="activation",
            expression="activation_index",
            values={activation: i for i, activation in enumerate(Activation)},
        ),
    )
)
