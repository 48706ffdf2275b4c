"""A tensor of an op, declared once, and the steps that judge it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from gemmill.family.schema import Parameter
from gemmill.family.steps import Aspect, Check, Let, Require, Step, When
from gemmill.vocab import DType


class Layout(StrEnum):
    """How the elements of a tensor lie."""

    ROWS = "rows"
    """those of a row beside one another, rows at one stride; apart where they are written"""
    COLUMNS = "columns"
    """of a matrix: those of a column beside one another"""
    VECTOR = "vector"
    """in order without gaps, along the one dimension that has more than one element"""
    VALUES = "values"
    """in order without gaps, in whatever dimensions"""
    LIKE = "like"
    """as those of the tensor that the shape names"""
    FREE = "free"
    """as another step of the contract says"""


@dataclass(frozen=True)
class Same:
    """The dtype of another tensor."""

    role: str


@dataclass(frozen=True)
class ResultOf:
    """One of the dtypes that belong to that of another tensor."""

    role: str
    results: Mapping[DType, tuple[DType, ...]] = field(hash=False)


@dataclass(frozen=True)
class Tensor:
    """What a tensor must be, by its role. Whether it is optional or written is its schema's to say."""

    role: str
    shape: str
    """Sizes with spaces between, `M K` or `... hidden`, where `...` stands for the dimensions of the first tensor that has it.
    A size that is new is named by it (by `... 2*hidden` too); others are expressions. Of VALUES: their number."""
    dtypes: tuple[DType, ...] | Same | ResultOf
    layout: Layout = Layout.FREE
    said: str = ""
    """How its dtypes are told, where not as a list."""
    each: str = ""
    """What each of several values belongs to."""
    parts: str = ""
    """What the parts of its rows are, where they have several (`... 2*hidden`)."""
    needs: tuple[Step, ...] = ()
    """What must hold where it is given, before it is judged itself."""


def torch_names(dtypes: Sequence[DType]) -> str:
    """A tuple of them, in the language of contracts."""
    return f"({''.join(f'{dtype.torch_name}, ' for dtype in dtypes)})"


def any_of(words: Sequence[str]) -> str:
    """In words: `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


class Expansion:
    """The steps that an op's checks of tensors stand for."""

    def __init__(self, tensors: Sequence[Tensor], parameters: Mapping[str, Parameter], named: Sequence[str]) -> None:
        self._tensors = {tensor.role: tensor for tensor in tensors}
        self._parameters = parameters
        self._named = dict.fromkeys(named, "")
        """Sizes, and the tensor that named each."""
        self._leading = ""
        """The tensor whose dimensions `...` stands for."""

    def expanded(self, step: Step) -> Iterator[Step]:
        """The step, or what it stands for."""
        match step:
            case Check():
                for inner in self._check(step):
                    yield from self.expanded(inner)
            case When(test, steps):
                yield When(test, tuple(inner for each in steps for inner in self.expanded(each)))
            case _:
                if isinstance(step, Let):
                    self._named.setdefault(step.name, "")
                yield step

    def _check(self, check: Check) -> Iterator[Step]:
        roles = [role for role in check.roles.split() if role in self._parameters]
        if check.aspect is Aspect.DEVICE:
            for role in roles[1:]:
                yield Require(f"together({roles[0]}, {role})", _DEVICE.format(x=role, first=roles[0]))
        elif check.aspect is Aspect.APART:
            for x, y in combinations(roles, 2):
                if self._parameters[x].written or self._parameters[y].written:
                    yield Require(f"apart({x}, {y})", _APART.format(x=x, y=y, unread=check.unread))
        else:
            for role in roles:
                yield from self._judged(check.aspect, self._tensors[role])

    def _judged(self, aspect: Aspect, x: Tensor) -> Iterator[Step]:
        match aspect:
            case Aspect.RANK:
                yield self._rank(x)
            case Aspect.SHAPE:
                yield from self._shape(x)
            case Aspect.DTYPE:
                yield from self._dtype(x)
            case Aspect.LAYOUT:
                yield from self._layout(x)
            case _:
                steps = (*x.needs, *self._dtype(x), *self._shape(x), *self._layout(x))
                yield from (When(x.role, steps),) if self._parameters[x.role].optional else steps

    def _rank(self, x: Tensor) -> Step:
        sizes = x.shape.split()
        if sizes[0] == "...":
            size = sizes[1].rpartition("*")[2]
            said = f"{{{x.role}.name}} has no dimensions, expected rows of values: [..., {size}]"
            return Require(f"rank({x.role}) >= 1", said)
        said = f"{{{x.role}.name}} has {{{x.role}.rank}} dimensions {{{x.role}.shape}}, expected {len(sizes)}"
        return Require(f"rank({x.role}) == {len(sizes)}", said)

    def _shape(self, x: Tensor) -> Iterator[Step]:
        name, sizes = x.role, x.shape.split()
        if x.layout is Layout.LIKE:
            yield Require(
                f"rank({name}) == rank({x.shape}) and like({name}, {x.shape}, size({x.shape}, -1)) and strides({name}, {x.shape})",
                _LIKE.format(x=name, y=x.shape),
            )
        elif x.layout is Layout.VECTOR:
            test = f"numel({name}) == {x.shape} and longer({name}) <= 1"
            yield Require(test, f"{{{name}.name}} has shape {{{name}.shape}}, expected [{x.shape}] = [{{{x.shape}}}]")
        elif x.layout is Layout.VALUES:
            what = "one value" if x.shape == "1" else f"{{{x.shape}}} values, one for each {x.each}"
            yield Require(f"numel({name}) == {x.shape}", f"{{{name}.name}} has shape {{{name}.shape}}: expected {what}")
        elif sizes[0] == "...":
            yield from self._rows_shape(x, sizes[1])
        else:
            yield from self._sizes(x, sizes)

    def _rows_shape(self, x: Tensor, last: str) -> Iterator[Step]:
        first = self._leading = self._leading or x.role
        parts, _, size = last.rpartition("*")
        if first == x.role:
            self._named[size] = first
            width = f"{first}_width" if parts else size
            yield Let(width, f"size({first}, -1)")
            if parts:
                yield Require(f"{width} % {parts} == 0", _PARTS.format(x=first, parts=x.parts, width=width))
                yield Let(size, f"{width} // {parts}")
            return
        found = f"{{{x.role}.name}} is {{{x.role}.shape}}, expected"
        whole = f"{found} {{{first}.name}}'s {{{first}.shape}}"
        part = f"{found} {{{first}.ending[{last}]}} for an {{{first}.name}} of {{{first}.shape}}"
        yield Require(f"like({x.role}, {first}, {last})", whole if x.dtypes == Same(first) else part)

    def _sizes(self, x: Tensor, sizes: Sequence[str]) -> Iterator[Step]:
        name, new = x.role, [size for size in sizes if size.isidentifier() and size not in self._named]
        for dim, size in enumerate(sizes):
            if size in new:
                self._named[size] = name
                yield Let(size, f"size({name}, {dim})")
        if not new:
            test = " and ".join(f"size({name}, {dim}) == {size}" for dim, size in enumerate(sizes))
            told = ", ".join(f"{{{size}}}" for size in sizes)
            yield Require(test, f"{{{name}.name}} is {{{name}.shape}}, expected [{', '.join(sizes)}] = [{told}]")
            return
        for dim, size in enumerate(sizes):
            if size not in new:
                yield from self._agreeing(x, sizes, dim)

    def _agreeing(self, x: Tensor, sizes: Sequence[str], dim: int) -> Iterator[Step]:
        name, size = x.role, sizes[dim]
        found, first = f"{size}_of_{name}", self._tensors[self._named[size]]
        shapes = f"[{', '.join(first.shape.split())}]", f"[{', '.join(sizes)}]"
        yield Let(found, f"size({name}, {dim})")
        yield Require(
            f"{found} == {size}",
            f"{{{first.role}.name}} is {shapes[0]} = {{{first.role}.shape}} and {{{name}.name}} is {shapes[1]} = "
            f"{{{name}.shape}}: {size} is {{{size}}} in {{{first.role}.name}} and {{{found}}} in {{{name}.name}}",
        )

    def _dtype(self, x: Tensor) -> Iterator[Step]:
        match x.dtypes:
            case Same(other) if x.layout in (Layout.ROWS, Layout.COLUMNS):
                yield Require(
                    f"dtype({x.role}) == dtype({other})",
                    f"{{{x.role}.name}} is {{{x.role}.dtype}} and {{{other}.name}} is {{{other}.dtype}}: both must have one "
                    f"dtype{x.said and f', {x.said}'}",
                )
            case Same(other):
                said = f"{{{x.role}.name}} is {{{x.role}.dtype}}, expected {{{other}.dtype}}"
                yield Require(f"dtype({x.role}) == dtype({other})", said)
            case ResultOf(other, results):
                yield from self._results(x, self._tensors[other], results)
            case dtypes:
                yield _among(x, dtypes, x.said or any_of([dtype.torch_name for dtype in dtypes]))

    def _results(self, x: Tensor, other: Tensor, results: Mapping[DType, tuple[DType, ...]]) -> Iterator[Step]:
        assert isinstance(other.dtypes, tuple)
        same = (y.role for y in self._tensors.values() if y.dtypes == Same(other.role))
        alike = " and ".join(f"{{{role}.name}}" for role in (other.role, *same))
        sentences: dict[tuple[tuple[DType, ...], str], list[DType]] = {}
        for operand in other.dtypes:
            own = f" as {alike} are" if results[operand] == (operand,) else ""
            said = f"{any_of([dtype.torch_name for dtype in results[operand]])}{own}"
            sentences.setdefault((results[operand], said), []).append(operand)
        for (dtypes, said), operands in sentences.items():
            yield When(f"dtype({other.role}) in {torch_names(operands)}", (_among(x, dtypes, said),))

    def _layout(self, x: Tensor) -> Iterator[Step]:
        name, written = x.role, self._parameters[x.role].written
        if x.layout in (Layout.VECTOR, Layout.VALUES) and x.shape != "1":
            of = f" of {{{name}.shape}}" if x.layout is Layout.VALUES else ""
            yield Require(
                f"dense({name}) == 1",
                f"{{{name}.name}}{of} has strides {{{name}.strides}}: its values must be contiguous",
            )
        elif x.layout is Layout.COLUMNS:
            yield Require(
                f"step({name}, 0) == 1", _COLUMNS.format(x=name, shape=f"[{', '.join(reversed(x.shape.split()))}]")
            )
        elif x.layout is Layout.ROWS:
            *leading, columns = x.shape.split()
            if leading == ["..."]:
                yield Let(f"{name}_stride", f"row_stride({name})")
                yield Require(f"{name}_stride >= 0", _ROWS.format(x=name))
            else:
                cure = "" if written else f"; call {{{name}.name}}.contiguous()"
                yield Require(
                    f"step({name}, 1) == 1",
                    f"{{{name}.name}} has strides {{{name}.strides}}: it must be row-major (last stride 1){cure}",
                )
            if written:
                yield from self._rows_apart(name, leading[0], columns)

    def _rows_apart(self, name: str, rows: str, columns: str) -> Iterator[Step]:
        stride = f"{name}_stride"
        if rows == "...":
            rows = f"rows({name})"
        else:
            yield Let(stride, f"row_stride({name})")
        yield Require(
            f"{rows} <= 1 or {stride} >= {columns}",
            f"{{{name}.name}} has row stride {{{stride}}} for rows of {{{columns}}}: its rows overlap",
        )


def _among(x: Tensor, dtypes: Sequence[DType], said: str) -> Require:
    return Require(
        f"dtype({x.role}) in {torch_names(dtypes)}", f"{{{x.role}.name}} is {{{x.role}.dtype}}, expected {said}"
    )


_DEVICE = (
    "{{{x}.name}} is on {{{x}.device}} and {{{first}.name}} is on {{{first}.device}}: all tensors must be on one device"
)
_APART = "{{{x}.name}} overlaps {{{y}.name}} in memory: results would overwrite {unread} still to be read"
_ROWS = (
    "{{{x}.name}} of {{{x}.shape}} has strides {{{x}.strides}}: its last stride must be 1, and its other dimensions must follow "
    "one another at one stride; call {{{x}.name}}.contiguous()"
)
_COLUMNS = (
    "{{{x}.name}} has strides {{{x}.strides}}: it must be column-major (first stride 1), as the transpose of a contiguous {shape} "
    "weight is"
)
_LIKE = (
    "{{{x}.name}} has shape {{{x}.shape}} and strides {{{x}.strides}}, expected those of {{{y}.name}}: {{{y}.shape}} and "
    "{{{y}.strides}}"
)
_PARTS = "{{{x}.name}} is {{{x}.shape}}: its rows hold {parts}, so their length {{{width}}} must be even"
