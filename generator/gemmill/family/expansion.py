"""The steps that an op's checks of its tensors stand for."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from gemmill.family.compiling import Returned
from gemmill.family.program import MOST_RESULT_SIZES
from gemmill.family.schema import ArgumentKind, Parameter
from gemmill.family.steps import Aspect, Check, Let, OneOf, Require, Step, When
from gemmill.family.tensor import Layout, ResultOf, Same, Size, Tensor, any_of, torch_names
from gemmill.vocab import DType, Format


class Expansion:
    """The steps that an op's checks of tensors stand for."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, Parameter],
        returns: Sequence[str],
        fixed: Mapping[str, int | Format],
    ) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._parameters = parameters
        self._named = dict.fromkeys((*parameters, *fixed), "")
        """Sizes, and the tensor that named each."""
        self._returns = returns
        self.results: list[Returned] = []
        """The results, complete after all steps."""
        self._leading = ""
        """The tensor whose dimensions `...` stands for."""
        self._told: set[str] = set()
        """Tensors whose dtype was checked."""
        for tensor in tensors:
            if tensor.role in self._tensors:
                shapes = self._tensors[tensor.role].shape, tensor.shape
                raise ValueError(f"tensor {tensor.role!r} is declared twice, as {shapes[0]!r} and {shapes[1]!r}")
            self._tensors[tensor.role] = tensor
        given = {role for role, parameter in parameters.items() if parameter.kind is ArgumentKind.TENSOR} | set(returns)
        if tensors and (apart := sorted(given ^ set(self._tensors))):
            raise ValueError(
                f"{apart[0]!r} is only in one of tensors declared and tensors of the schema: {_sorted(self._tensors)} and {_sorted(given)}"
            )
        for tensor in tensors:
            self._agree(tensor, fixed)
        known = [dtype for tensor in tensors if isinstance(tensor.dtypes, tuple) for dtype in tensor.dtypes]
        if isinstance(chosen := fixed.get("format"), Format) and chosen not in known:
            raise ValueError(
                f"'format' is fixed as {chosen}, and the dtypes of its tensors are {', '.join(map(str, known))}"
            )

    def _agree(self, x: Tensor, fixed: Mapping[str, int | Format]) -> None:
        """Raises ValueError where the declared dtypes contradict one another."""
        match x.dtypes:
            case Same(other) | ResultOf(other) if other not in self._tensors:
                raise ValueError(
                    f"dtype of {x.role!r} is told by {other!r}, which is no tensor, of {', '.join(self._tensors)}"
                )
            case ResultOf(other, results):
                of = self._tensors[other].dtypes
                if not isinstance(of, tuple) or (lacking := [dtype for dtype in of if dtype not in results]):
                    raise ValueError(
                        f"{x.role!r} has results of {', '.join(results)}, and {other!r} may be {lacking[0]}"
                    )
            case tuple() as dtypes:
                first: dict[str, DType | Format] = {}
                for dtype in dtypes:
                    other_dtype = first.setdefault(dtype.torch_name, dtype)
                    if other_dtype is not dtype and not {"format"} & {*self._parameters, *fixed}:
                        raise ValueError(
                            f"{x.role!r} may be {other_dtype} or {dtype}, which both come as {dtype.torch_name}, and neither an "
                            "argument nor a fixed value 'format' tells them apart"
                        )

    def steps(self, contract: Sequence[Step]) -> Iterator[Step]:
        """The steps of a contract without abbreviations, then steps that name the sizes of `results`. Raises ValueError
        where it contradicts itself.
        """
        for step in contract:
            yield from self._expanded(step)
        for role in self._parameters:
            if role in self._tensors and role not in self._told:
                raise ValueError(f"tensor {role!r} is {self._tensors[role].shape!r}, and no step checks its dtype")
        for role, parameter in self._parameters.items():
            if role in self._tensors and self._tensors[role].is_read_in_pieces:
                cure = "pass memory as torch.empty gives it" if parameter.written else f"pass {{{role}.name}}.clone()"
                said = _PIECES.format(x=role, least=self._tensors[role].alignment, cure=cure)
                yield Require(f"aligned({self._tensors[role].alignment}, {role})", said)
        for role in self._returns:
            self.results.append((yield from self._result(role)))

    def _expanded(self, step: Step) -> Iterator[Step]:
        """The step, or the steps that it abbreviates."""
        match step:
            case Check():
                for inner in self._check(step):
                    yield from self._expanded(inner)
            case When(test, steps):
                yield When(test, tuple(inner for each in steps for inner in self._expanded(each)))
            case _:
                if isinstance(step, Let | OneOf):
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
                if role not in self._tensors:
                    raise ValueError(f"{check.aspect} of {role!r} is checked, declared are {_sorted(self._tensors)}")
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
                known = set(self._named)
                steps = (*x.needs, *self._dtype(x), *self._shape(x), *self._layout(x))
                optional = self._parameters[x.role].optional
                if optional and (
                    new := [name for name, by in self._named.items() if by == x.role and name not in known]
                ):
                    raise ValueError(f"size {new[0]!r} is named by {x.role!r}, which is optional: {x.shape!r}")
                yield from (When(x.role, steps),) if optional else steps

    def _rank(self, x: Tensor) -> Step:
        if x.follows:
            said = f"{{{x.role}.name}} has no dimensions, expected rows of values: [..., {x.sizes[-1].name}]"
            return Require(f"rank({x.role}) >= 1", said)
        rank = len(x.sizes)
        said = f"{{{x.role}.name}} has {{{x.role}.rank}} dimensions {{{x.role}.shape}}, expected {rank}"
        return Require(f"rank({x.role}) == {rank}", said)

    def _shape(self, x: Tensor) -> Iterator[Step]:
        name = x.role
        found = f"{{{name}.name}} has shape {{{name}.shape}}"
        if x.layout is Layout.LIKE:
            y = x.shape
            test = f"rank({name}) == rank({y}) and like({name}, {y}, size({y}, -1)) and strides({name}, {y})"
            yield Require(test, _LIKE.format(x=name, y=y))
        elif x.layout is Layout.VECTOR:
            test = f"numel({name}) == {x.shape} and longer({name}) <= 1"
            yield Require(test, f"{found}, expected [{x.shape}] = [{{{x.shape}}}]")
        elif x.layout is Layout.VALUES:
            what = "one value" if x.shape == "1" else f"{{{x.shape}}} values, one for each {x.each}"
            yield Require(f"numel({name}) == {x.shape}", f"{found}: expected {what}")
        elif not x.follows:
            yield from self._sizes(x)
        elif not self._leading:
            self._leading = name
            yield from self._new(x, x.sizes[-1], -1)
        else:
            yield from self._following(x, self._leading)

    def _following(self, x: Tensor, first: str) -> Iterator[Step]:
        last = yield from self._value(x, -1)
        found = f"{{{x.role}.name}} is {{{x.role}.shape}}, expected"
        whole = f"{found} {{{first}.name}}'s {{{first}.shape}}"
        part = f"{found} {{{first}.ending[{last}]}} for an {{{first}.name}} of {{{first}.shape}}"
        yield Require(f"like({x.role}, {first}, {last})", whole if x.dtypes == Same(first) else part)

    def _value(self, x: Tensor, dim: int) -> Generator[Step, None, str]:
        """Names one of its sizes; returns the name."""
        size = x.sizes[dim]
        if size.text.isidentifier():
            return size.text
        if (name := f"{x.role}_{dim % len(x.sizes)}") not in self._named:
            yield from self._whole(size)
            yield Let(name, size.expression)
        self._named[name] = ""
        return name

    def _values(self, x: Tensor) -> Generator[Step, None, list[str]]:
        """The same for all."""
        names = []
        for dim in range(len(x.sizes)):
            names.append((yield from self._value(x, dim)))
        return names

    def _new(self, x: Tensor, size: Size, dim: int) -> Iterator[Step]:
        """Names a size by the dimension that it stands in."""
        self._named[size.name] = x.role
        if size.times == size.over == 1:
            yield Let(size.name, f"size({x.role}, {dim})")
            return
        width = f"{x.role}_{size.name}"
        yield Let(width, f"size({x.role}, {dim})")
        if size.times > 1:
            parts = x.parts or f"{size.times} for each of {size.over}"
            what = "even" if size.times == 2 else f"a multiple of {size.times}"
            yield Require(f"{width} % {size.times} == 0", _PARTS.format(x=x.role, parts=parts, width=width, what=what))
        yield Let(size.name, f"{width} * {size.over} // {size.times}" if size.over > 1 else f"{width} // {size.times}")

    def _whole(self, size: Size) -> Iterator[Step]:
        """A requirement, once for each, that a part of a named size is a whole number."""
        if size.over > 1 and (asked := f"{size.text} is whole") not in self._named:
            self._named[asked] = ""
            times = f" * {size.times}" if size.times > 1 else ""
            yield Require(
                f"{size.name}{times} % {size.over} == 0",
                f"{size.name} is {{{size.name}}}, and {size.text} of it is no whole number of elements",
            )

    def _sizes(self, x: Tensor) -> Iterator[Step]:
        new = [size for size in x.sizes if size.name and size.name not in self._named]
        for dim, size in enumerate(x.sizes):
            if size in new:
                yield from self._new(x, size, dim)
        if new:
            for dim, size in enumerate(x.sizes):
                if size not in new:
                    yield from self._agreeing(x, size, dim)
            return
        names = yield from self._values(x)
        test = " and ".join(f"size({x.role}, {dim}) == {name}" for dim, name in enumerate(names))
        shape = ", ".join(size.text for size in x.sizes)
        told = ", ".join(f"{{{name}}}" for name in names)
        yield Require(test, f"{{{x.role}.name}} is {{{x.role}.shape}}, expected [{shape}] = [{told}]")

    def _agreeing(self, x: Tensor, size: Size, dim: int) -> Iterator[Step]:
        first = self._tensors.get(self._named.get(size.name, ""))
        if first is None or size.text != size.name:
            wanted = yield from self._value(x, dim)
            said = (
                f"{{{x.role}.name}} is {{{x.role}.shape}}, expected {size.text} = {{{wanted}}} in its dimension {dim}"
            )
            yield Require(f"size({x.role}, {dim}) == {wanted}", said)
            return
        found = f"{size.name}_of_{x.role}"
        reversed_ = ", ".join(reversed(x.shape.split()))
        cure = f"; pass weight.t() of an [{reversed_}] weight" if x.layout is Layout.COLUMNS else ""
        shapes = [f"[{', '.join(size.text for size in y.sizes)}]" for y in (first, x)]
        yield Let(found, f"size({x.role}, {dim})")
        yield Require(
            f"{found} == {size.name}",
            f"{{{first.role}.name}} is {shapes[0]} = {{{first.role}.shape}} and {{{x.role}.name}} is {shapes[1]} = "
            f"{{{x.role}.shape}}: {size.name} is {{{size.name}}} in {{{first.role}.name}} and {{{found}}} in {{{x.role}.name}}{cure}",
        )

    def _dtype(self, x: Tensor) -> Iterator[Step]:
        self._told.add(x.role)
        match x.dtypes:
            case Same(other) if x.layout in (Layout.ROWS, Layout.COLUMNS):
                yield Require(
                    f"dtype({x.role}) == dtype({other})",
                    f"{{{x.role}.name}} is {{{x.role}.dtype}} and {{{other}.name}} is {{{other}.dtype}}: they must have the "
                    f"same dtype{x.said and f', {x.said}'}",
                )
            case Same(other):
                said = f"{{{x.role}.name}} is {{{x.role}.dtype}}, expected {{{other}.dtype}}"
                yield Require(f"dtype({x.role}) == dtype({other})", said)
            case ResultOf(other, results):
                yield from self._results(x, self._tensors[other], results)
            case dtypes:
                yield _among(x, dtypes, x.said or any_of(list(dict.fromkeys(dtype.torch_name for dtype in dtypes))))

    def _results(self, x: Tensor, other: Tensor, results: Mapping[Any, tuple[DType, ...]]) -> Iterator[Step]:
        assert isinstance(other.dtypes, tuple)
        same = (y.role for y in self._tensors.values() if y.dtypes == Same(other.role))
        alike = " and ".join(f"{{{role}.name}}" for role in (other.role, *same))
        sentences: dict[tuple[tuple[DType, ...], str], list[DType | Format]] = {}
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
            if x.follows:
                yield Let(f"{name}_stride", f"row_stride({name})")
                yield Require(f"{name}_stride >= 0", _ROWS.format(x=name))
            else:
                cure = "" if written else f"; call {{{name}.name}}.contiguous()"
                yield Require(
                    f"step({name}, 1) == 1",
                    f"{{{name}.name}} has strides {{{name}.strides}}: it must be row-major (last stride 1){cure}",
                )
            if written:
                yield from self._rows_apart(x)

    def _rows_apart(self, x: Tensor) -> Iterator[Step]:
        stride = f"{x.role}_stride"
        if not x.follows:
            yield Let(stride, f"row_stride({x.role})")
        columns = yield from self._value(x, -1)
        rows = x.sizes[0].text if not x.follows and x.sizes[0].text in self._named else f"rows({x.role})"
        yield Require(
            f"{rows} <= 1 or {stride} >= {columns}",
            f"{{{x.role}.name}} has row stride {{{stride}}} for rows of {{{columns}}}: its rows overlap",
        )

    def _result(self, role: str) -> Generator[Step, None, Returned]:
        """Names the sizes of a returned tensor; returns its description for the compiler."""
        x = self._tensors[role]
        kinds = len(x.dtypes) if isinstance(x.dtypes, tuple) else int(isinstance(x.dtypes, Same))
        if kinds != 1 or x.layout not in (Layout.ROWS, Layout.COLUMNS, Layout.VALUES, Layout.VECTOR):
            raise ValueError(
                f"{role!r} is returned with {kinds} dtypes and layout {str(x.layout)!r}: it has one dtype, and rows, columns or values"
            )
        new = [size.name for size in x.sizes if size.name and size.name not in self._named]
        if new or (x.follows and not self._leading):
            raise ValueError(
                f"{role!r} is returned as {x.shape!r}, and {new[0] if new else '...'!r} is named by no tensor"
            )
        if len(x.sizes) > MOST_RESULT_SIZES or (x.layout is Layout.COLUMNS and (x.follows or len(x.sizes) != 2)):
            raise ValueError(
                f"{role!r} is returned as {x.shape!r} with layout {str(x.layout)!r}: it has at most {MOST_RESULT_SIZES} sizes, "
                "and two where columns lie behind one another"
            )
        if not any(y.kind is ArgumentKind.TENSOR and not y.optional for y in self._parameters.values()):
            raise ValueError(
                f"{role!r} is returned on the device of an argument, and no tensor of {_sorted(self._parameters)} is always given"
            )
        return x, self._leading if x.follows else "", (yield from self._values(x))


def _sorted(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _among(x: Tensor, dtypes: Sequence[DType | Format], said: str) -> Require:
    return Require(
        f"dtype({x.role}) in {torch_names(dtypes)}", f"{{{x.role}.name}} is {{{x.role}.dtype}}, expected {said}"
    )


_DEVICE = (
    "{{{x}.name}} is on {{{x}.device}} and {{{first}.name}} is on {{{first}.device}}: all tensors must be on one device"
)
_APART = "{{{x}.name}} overlaps {{{y}.name}} in memory: results would overwrite {unread} still to be read"
_PIECES = "{{{x}.name}} begins {{{x}.pieces[{least}]}}, and kernels need it aligned: {cure}"
_ROWS = (
    "{{{x}.name}} of {{{x}.shape}} has strides {{{x}.strides}}: its last stride must be 1, and its other dimensions must follow "
    "one another at one stride; call {{{x}.name}}.contiguous()"
)
_COLUMNS = (
    "{{{x}.name}} has strides {{{x}.strides}} and must be column-major: pass weight.t() of a contiguous {shape} weight"
)
_LIKE = (
    "{{{x}.name}} has shape {{{x}.shape}} and strides {{{x}.strides}}, expected those of {{{y}.name}}: {{{y}.shape}} and "
    "{{{y}.strides}}"
)
_PARTS = "{{{x}.name}} is {{{x}.shape}}: its rows hold {parts}, so their length {{{width}}} must be {what}"
