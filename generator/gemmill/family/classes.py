"""Axes that split calls of a family into classes, and the number of a class: the same for a call and for a config."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from operator import mul
from typing import Any

from gemmill.family.shaped_call import ShapedCall
from gemmill.family.tuning import Row, Tuning


@dataclass(frozen=True, kw_only=True)
class ClassAxis:
    """One thing in which classes of calls differ."""

    name: str
    """Of the config's field."""
    expression: str
    """Its number for a call, in the words of the call's contract. A name that the op has not is 0."""
    values: Mapping[Any, int]
    """Its number for each value of the config's field."""

    def __post_init__(self) -> None:
        if (different := len(set(self.values.values()))) < len(self.values):
            listed = ", ".join(map(str, self.values))
            raise ValueError(f"class axis {self.name!r}: values {listed} have {different} different numbers")

    @cached_property
    def extent(self) -> int:
        """Numbers that there can be."""
        return max(self.values.values()) + 1


@dataclass(frozen=True)
class Classes:
    """All axes of a family. As the last step of a contract they name the number of the call's class `class`."""

    axes: tuple[ClassAxis, ...]

    @cached_property
    def weights(self) -> Sequence[int]:
        """Of each axis' number in that of a class."""
        extents = [axis.extent for axis in reversed(self.axes)]
        return [*accumulate([1, *extents[:-1]], mul)][::-1]

    def number(self, config: Any) -> int:
        """Of the class whose calls a config serves."""
        return self.number_of(**{axis.name: getattr(config, axis.name) for axis in self.axes})

    def number_of(self, **values: Any) -> int:
        """Of the class in which the axes have these values, by their names."""
        return sum(
            axis.values[values[axis.name]] * weight for axis, weight in zip(self.axes, self.weights, strict=True)
        )

    def told(self, number: int) -> Iterator[tuple[str, Any]]:
        """Field and value of each axis in a class."""
        for axis, weight in zip(self.axes, self.weights, strict=True):
            found = number // weight % axis.extent
            yield axis.name, next(value for value, code in axis.values.items() if code == found)

    @property
    def tuning(self) -> Tuning:
        """How a call comes to the one variant that serves its class."""
        return Tuning(
            rows=self._rows,
            describe=lambda number: ", ".join(f"{name}={value}" for name, value in self.told(number)),
            differs=cache(self._differs),
        )

    def of_call(self, family: str, number: int) -> ShapedCall:
        """A call of a class, as far as the choice depends on it."""
        return ShapedCall(family=family, call_class=number, sizes=(), alignments=())

    def _rows(self, config: Any, kernel: int) -> Iterator[Row]:
        yield Row(kernel=kernel, call_class=self.number(config), most=0, alignments=(), least=(), facts=())

    def _differs(self, has: int, needs: int) -> str:
        pairs = zip(self.told(has), self.told(needs), strict=True)
        name, found, wanted = next((name, x, y) for (name, x), (_, y) in pairs if x != y)
        return f"it has {name}={found}, the call needs {wanted}"
