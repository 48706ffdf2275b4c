"""How a family's calls come to a variant: its sizes by name, how far a measured row reaches, and its model."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmill.family.order import Order
from gemmill.family.shaped_call import ShapedCall
from gemmill.family.sweep import Sweep

MOST_SIZES, MOST_ALIGNED, MOST_FACTS = 6, 4, 19
"""The capacity of a call and of a row; mirrored by kernels/extension/selection.h."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant for one class of calls."""

    kernel: int
    """Index in the extension."""
    call_class: int
    """The number of the class."""
    most: int
    """Of each size."""
    alignments: tuple[int, ...]
    """Bytes that it needs of each aligned operand."""
    least: tuple[int, ...]
    """Of each size."""
    facts: Any
    """The inputs of model and launch: a tuple of numbers with names, in the order of the family's own struct in C++."""
    quarantined: bool = False
    """Whether it is never chosen, only pinned: it went wrong when it was measured."""
    held_only: bool = False
    """Whether it is chosen under batch invariance alone, or pinned: another variant without its order is as fast."""

    @property
    def is_withheld(self) -> bool:
        """Whether a free choice passes it over."""
        return self.quarantined or self.held_only


@dataclass(frozen=True, kw_only=True)
class Needs:
    """A variant of another family, of which one whose launches it makes has to be in the same build."""

    family: str
    """The other family's name."""
    config: Mapping[str, Any]
    """Fields of its config, and their values."""

    def holds(self, family: str, config: Any) -> bool:
        """Whether a variant is one."""
        return family == self.family and all(getattr(config, name) == value for name, value in self.config.items())


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a measured choice reaches. Tiles are as wide as fills the SMs for one shape, so the choice of another is a
    worse guide than the model (docs/notes/tables.md)."""

    few: int
    """Of the bucketed size: a row for so many serves all smaller ones."""
    many: int
    """From here on a row serves larger ones too, `ratio` times as large at most."""
    endless: int
    """From here on waves are so many that more of them change nothing."""
    ratio: int
    """How much larger than a call's the bucketed size of a row may be."""
    distance: float
    """Of binary logarithms of all near sizes together."""
    margin: float = math.inf
    """At other sizes than a row's, how many times the model's best time the row's variant may take there, by the model, and
    still be chosen; infinite where the model is no better guide than a row nearby (docs/notes/tables.md)."""
    abroad: int | None = None
    """The largest bucketed size that a row of another device's table speaks for, if there is one: beyond it the model chooses
    better (docs/notes/tables.md)."""

    def covers(self, measured: int, size: int) -> bool:
        """Whether a row at the size `measured` applies to a bucketed size. Mirrors `covers` in
        kernels/extension/selection.cpp.
        """
        if size > measured:
            return measured >= self.endless or (measured >= self.many and size <= self.ratio * measured)
        return measured <= max(self.few, self.ratio * size)

    def bucket(self, size: int) -> int:
        """The bucketed size of a row that serves `size`, where sweeps measure powers of two."""
        return max(self.few, 1 << (size - 1).bit_length() if size > 0 else 0)

    def speaks_abroad(self, measured: int) -> bool:
        """Whether a row at the size `measured` applies to another device of its architecture."""
        return self.abroad is None or measured <= self.abroad


@dataclass(frozen=True)
class Chunks:
    """Calls of which a batch decides how many there are: under batch invariance all hold one order in one slice, so that chunks
    of a call have its bits.
    """

    size: str
    """The size that a chunk has less of."""
    most: int
    """The most of it in a call that is no chunk."""
    whole: int
    """The size at which an order is chosen for all chunks."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The choice of one of several variants for a call: by near measurements, else by a model. Where one variant serves
    each class of calls there are no sizes, and nothing to choose.
    """

    sizes: tuple[str, ...] = ()
    """Names of the sizes in which calls of a class differ."""
    result: tuple[str, ...] = ()
    """Sizes of the result: a call launches nothing where one is 0."""
    aligned: tuple[str, ...] = ()
    """Operands whose alignment decides which variants take a call."""
    near: tuple[str, ...] = ()
    """Sizes that a row must match nearly, in the sort order of rows."""
    bucketed: str = ""
    """The size along which sweeps measure weights in steps: a row serves up to its own."""
    reach: Reach = Reach(few=0, many=0, endless=0, ratio=0, distance=0.0)
    rows: Callable[[Any, int], Iterable[Row]]
    """Of a config and its kernel's index: a row for each class of calls."""
    needs: Callable[[Any], Needs | None] = lambda config: None
    """The kernel of another family that a variant of a config launches, and without which it serves no call."""
    order: Callable[[Any], Order | None] = lambda config: None
    """The order in which a variant of a config sums along K; None where a row's bits may depend on the batch, or nobody has
    shown that they do not."""
    summed: str = ""
    """The size along which orders divide sums into slices (`Order.over`); none where the step decides in every call."""
    describe: Callable[[int], str]
    """A class of calls in words."""
    differs: Callable[[int, int], str]
    """Why a variant of the first class takes no call of the second."""
    refuses: Callable[[Row, ShapedCall], str | None] = lambda row, call: None
    """Why a variant takes no call of such sizes, apart from the limits in its row."""
    across: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes that a batch decides, so that one order serves all of their values, and those at which its expected loss is
    computed; the bucketed size at 1, 2, 4 to 4096 by default.
    """
    chunks: Chunks | None = None
    """Calls that are chunks of longer ones; None where a family has none."""
    one_slice: float = 0.2
    """The power of the model's ratio that one slice of K costs against the best number of slices. Chosen by hand, not a fit: least
    squares of the logarithms give 0.15. Up to 128 rows the model says 1.030 in the mean and 1.77 at worst, measured were 1.005 and
    1.14 (207 shapes of tune-h200-2026-11-21 of which several orders were timed, 199 of e4m3 and 8 of bf16, H200). For bf16 and
    other GEMMs it is an assumption; 1.0 takes the model at its word, as scaled GEMMs do (docs/notes/tables.md)."""
    model_ns: Callable[[Row, ShapedCall, int], float] = lambda row, call, sm_count: 0.0
    """Estimated nanoseconds of a call, on a device of so many multiprocessors."""
    least_ns: Callable[[Row, ShapedCall, int], float] = lambda row, call, sm_count: 0.0
    """A number that `model_ns` is not below and that takes less time: a choice computes no more of a row that cannot win."""
    wastes: Callable[[Row, Sequence[int], Sequence[int]], bool] = lambda row, measured, sizes: False
    """Whether a variant measured at the first sizes does much worse for its kind at the second."""
    offers: Callable[[Any], Mapping[int, tuple[Any, ...]]] = lambda config: {}
    """The configs that a measured one stands for, best first, by the class that they serve."""
    usual: Callable[[int], Mapping[str, tuple[int, int, int]]] = lambda call_class: {}
    """The least and most of each size in models' calls of a class, and a number of which it is a multiple, by name: `gemmill
    prune --random` takes calls between them. None where nobody says so."""
    measured_as: Callable[[ShapedCall], str | None] = lambda call: None
    """The class by which tables know a call; None for a class without tuning."""
    sweep: Sweep | None = None
    """The sweep of the family; None without measurements."""

    @property
    def is_measured(self) -> bool:
        """Whether there is something to choose: else one variant serves all calls of its class."""
        return bool(self.sizes)

    @property
    def key(self) -> tuple[str, ...]:
        """Sizes in the sort order of tables' rows."""
        return (*self.near, self.bucketed)

    def contradiction(self) -> str | None:
        """A contradiction in the names of sizes; None where they agree."""
        if not self.is_measured:
            return None
        told = ", ".join(self.sizes)
        if len(set(self.sizes)) < len(self.sizes):
            return f"sizes {told} name one of them twice"
        told_of = (("near", self.near), ("bucketed", (self.bucketed,)), ("result's", self.result))
        for what, names in (*told_of, ("summed", (self.summed,) if self.summed else ())):
            for name in names:
                if name not in self.sizes:
                    return f"{what} size {name!r} is none of {told}"
        if sorted(self.key) != sorted(self.sizes):
            return f"near sizes {', '.join(self.near)} and bucketed size {self.bucketed} are not each of {told} once"
        for what, names, most in (("sizes", self.sizes, MOST_SIZES), ("aligned operands", self.aligned, MOST_ALIGNED)):
            if len(names) > most:
                return f"{what} {', '.join(names)} are {len(names)}, the extension has room for {most}"
        return None

    def named(self, sizes: Sequence[int]) -> dict[str, int]:
        """Sizes by their names."""
        return dict(zip(self.sizes, sizes, strict=True))

    def ordered(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Named sizes in the order of their names."""
        return tuple(sizes[name] for name in self.sizes)
