"""The definitions of a CuTe DSL kernel, read as syntax, without the DSL.

They are the functions, classes and constants that an entry function reaches through names of gemmill's modules. Each
refers to others by numbers, in the order of first reference. So names of modules, places in them and docstrings do not
count.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource, unwrap
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any

from gemmill.build.files import digest

_FOR_DSL = {"cutlass", "cuda"}
"""Packages that only modules for the DSL's compiler import."""
_NO_MEANING = {"ctx", "kind", "type_comment", "type_params"}
"""Fields of syntax trees that follow from others, or that not every release of Python has."""

Members = frozenset[tuple[str, str]]
"""Members of enumerations, as type and name."""


@dataclass(frozen=True)
class Place:
    """Where a definition stands. The name is empty for a module's statements that define nothing."""

    module: str
    name: str


@dataclass(kw_only=True)
class Definition:
    """The content of one place, and the places that it refers to."""

    tree: Any = None
    """Its syntax as lists; None for a value."""
    value: Any = None
    """A constant or a class of a module that is not for the DSL's compiler: Python has made it already."""
    refers: list[Place] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    keys: set[tuple[str, str]] = field(default_factory=set)
    """Members of enumerations by which tables in it are read."""

    @cached_property
    def digest(self) -> str:
        """The digest of its syntax."""
        return digest(self.tree)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module's statements by the names that they define, and its imports."""

    name: str
    definitions: Mapping[str, Sequence[ast.stmt]]
    statements: Sequence[ast.stmt]
    imports: Mapping[str, Sequence[Place]]
    """By their names in the module."""
    is_for_dsl: bool


_LOCATIONS = "gemmill.locations"
"""Where a checkout lies is no part of a kernel. The key of the C++ that calls it has the headers which a body reads there."""


class Library:
    """The modules below `root`, and those of the package that the entry is of, wherever it lies."""

    def __init__(self, root: Path, package: str) -> None:
        self._root = root
        self._packages = {"gemmill", package}
        self._modules: dict[str, Module | None] = {}
        self._definitions: dict[tuple[Place, Members | None], Definition] = {}
        self._resolved: dict[Place, list[Place]] = {}

    def module(self, name: str) -> Module | None:
        """A module; None for one of others. Raises OSError, SyntaxError."""
        if name not in self._modules:
            path = self._file_of(name)
            self._modules[name] = None if path is None else _read(name, ast.parse(path.read_bytes()))
        return self._modules[name]

    def _file_of(self, name: str) -> Path | None:
        parts = name.split(".")
        if parts[0] not in self._packages:
            return None
        path = self._root.joinpath(*parts)
        below = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
        if below is not None or (self._root / parts[0]).is_dir():
            return below
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            return None
        return Path(found.origin) if found is not None and found.origin is not None else None

    def definition(self, place: Place, members: Members | None) -> Definition:
        """The definition at a place. Leaves out the rows of tables for members outside `members`, unless that is None."""
        if (place, members) not in self._definitions:
            self._definitions[place, members] = self._read(place, members)
        return self._definitions[place, members]

    def _read(self, place: Place, members: Members | None) -> Definition:
        module = self.module(place.module)
        assert module is not None  # it was resolved
        if not place.name:
            return _Reader(self, module, members).read(module.statements)
        if module.is_for_dsl:
            found = _Reader(self, module, members).read(module.definitions[place.name])
            if module.statements:
                found.refers.append(Place(place.module, ""))
            return found
        value = getattr(import_module(place.module), place.name)
        function = unwrap(value) if callable(value) else value
        own = self.module(function.__module__) if isinstance(function, FunctionType) else None
        if own is not None and function.__name__ in own.definitions:
            return _Reader(self, own, members).read(own.definitions[function.__name__])
        return Definition(value=value)

    def resolve(self, place: Place) -> list[Place]:
        """The places of the definitions that a name of a module means; none for other packages' names.

        A module as a value means all of its definitions.
        """
        if place not in self._resolved:
            self._resolved[place] = self._meant(place)
        return self._resolved[place]

    def _meant(self, place: Place) -> list[Place]:
        module = self.module(place.module)
        if module is None or place.module == _LOCATIONS:
            return []
        if self.is_module(place):
            inner = self.module(_dotted(place))
            assert inner is not None  # it is a module
            return [Place(inner.name, name) for name in inner.definitions]
        if place.name in module.definitions or not module.is_for_dsl:
            return [place]
        return [found for target in module.imports.get(place.name, ()) for found in self.resolve(target)]

    def is_module(self, place: Place) -> bool:
        """Whether a name means a module."""
        return self.module(_dotted(place)) is not None


def _dotted(place: Place) -> str:
    return f"{place.module}.{place.name}" if place.name else place.module


def _read(name: str, tree: ast.Module) -> Module:
    definitions, statements = defaultdict[str, list[ast.stmt]](list), list[ast.stmt]()
    for node in tree.body:
        names = set(_defined(node))
        for defined in names:
            definitions[defined].append(node)
        if not names and not _is_for_readers(node):
            statements.append(node)
    imports = defaultdict[str, list[Place]](list)
    for known, place in _imports(tree):
        imports[known].append(place)
    modules = {place.module.split(".")[0] for places in imports.values() for place in places}
    return Module(
        name=name,
        definitions=definitions,
        statements=statements,
        imports=imports,
        is_for_dsl=bool(_FOR_DSL & modules),
    )


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            yield part.name


def _imports(tree: ast.Module) -> Iterator[tuple[str, Place]]:
    """Each import of a module or of a function in it, with its name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, Place(alias.name, "")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, Place(node.module or "", alias.name)) for alias in node.names)


def _is_for_readers(node: Any) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def read_method(function: FunctionType) -> Definition:
    """A method that Python has made, whose names mean nothing but themselves. Raises OSError."""
    nowhere = Module(name="", definitions={}, statements=(), imports={}, is_for_dsl=False)
    return _Reader(Library(Path(), ""), nowhere, None).read(ast.parse(dedent(getsource(function))).body)


class _Reader:
    """Statements as lists, without imports and without texts that only readers see."""

    def __init__(self, library: Library, module: Module, members: Members | None) -> None:
        self._library, self._module, self._members = library, module, members
        self._found = Definition()
        self._numbers: dict[Place, int] = {}

    def read(self, statements: Sequence[ast.stmt]) -> Definition:
        """The definition that the statements are."""
        self._found.tree = self._listed(list(statements))
        self._found.refers = list(self._numbers)
        return self._found

    def _listed(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._listed(item) for item in node if not _is_for_readers(item)]
        if not isinstance(node, ast.AST):
            return node if node is None or isinstance(node, (str, int)) else repr(node)
        if places := self._meant(node):
            return ["refers", *(self._numbers.setdefault(place, len(self._numbers)) for place in places)]
        if isinstance(node, ast.Attribute):
            self._found.attributes.add(node.attr)
        parts = dict(ast.iter_fields(node))
        if isinstance(node, ast.Dict):
            parts = {"rows": list(self._rows(node))}
        kept = {name: value for name, value in parts.items() if name not in _NO_MEANING and value not in (None, [])}
        return [type(node).__name__, *([name, self._listed(value)] for name, value in kept.items())]

    def _meant(self, node: ast.AST) -> list[Place]:
        """The definitions that a name, or a name of a module's, means."""
        if isinstance(node, ast.Name):
            if node.id in self._module.definitions:
                return [Place(self._module.name, node.id)]
            return [found for place in self._imported(node.id) for found in self._library.resolve(place)]
        if isinstance(node, ast.Attribute) and (known := _spelled(node.value)) in self._module.imports:
            modules = [_dotted(place) for place in self._imported(known) if self._library.is_module(place)]
            return [found for module in modules for found in self._library.resolve(Place(module, node.attr))]
        return []

    def _imported(self, name: str) -> Iterable[Place]:
        return self._module.imports.get(name, ())

    def _rows(self, table: ast.Dict) -> Iterator[ast.expr | None]:
        for key, value in zip(table.keys, table.values, strict=True):
            member = _member(key)
            if member is not None:
                self._found.keys.add(member)
                if self._members is not None and member not in self._members:
                    continue
            yield from (key, value)


def _spelled(node: ast.expr) -> str:
    """A name with dots as the source spells it; empty for any other node."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := _spelled(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _member(key: ast.expr | None) -> tuple[str, str] | None:
    """The enumeration's member that a table's key spells, `Type.NAME`."""
    if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.attr.isupper():
        return key.value.id, key.attr
    return None
