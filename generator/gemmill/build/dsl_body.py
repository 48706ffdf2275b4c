"""The digest of all inputs from which the CuTe DSL makes a kernel's machine code, found without the DSL.

It covers the syntax of all definitions that the entry function reaches (`dsl_syntax.py`), and, as values, the facts of
a config and its plan that these definitions read. A dtype, a format, a file or a class that a kernel does not use
changes neither.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from gemmill.build.dsl_syntax import Definition, Library, Members, Place, read_method
from gemmill.build.files import digest
from gemmill.family import Config
from gemmill.registry import REGISTRY

_ROOT = Path(__file__).resolve().parents[2]
_EXPORT = "export"
"""The function of an entry module that compiles a kernel: emitted files and dsl_worker.py call it."""


class Bodies:
    """The kernels' bodies below `root`, as their files are at the first read."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._libraries: dict[str, Library] = {}
        self._bodies: dict[str, Body] = {}

    def digest(self, config: Config) -> str:
        """The digest of the kernel that the DSL makes of a config.

        Raises ValueError for a config that no kernel can be made of, and OSError, SyntaxError.
        """
        dsl = REGISTRY.kernels_of(config).dsl
        assert dsl is not None  # callers pass configs of the DSL alone
        return self._body(dsl.entry).digest_for(config.compiled, dsl.facts(config.compiled))

    def what_makes(self, config: Config) -> str:
        """The identity of a config's kernel: its digest, or why the DSL can make none.

        Raises OSError, SyntaxError.
        """
        try:
            return self.digest(config)
        except ValueError as error:
            return str(error)

    def _body(self, entry: str) -> "Body":
        if entry not in self._bodies:
            package = entry.split(".")[0]
            library = self._libraries.setdefault(package, Library(self._root, package))
            self._bodies[entry] = Body(library=library, entry=Place(entry, _EXPORT))
        return self._bodies[entry]


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """The definitions that all kernels of one entry share."""

    library: Library
    entry: Place

    def digest_for(self, *facts: Any) -> str:
        """The digest of the kernel with these facts: a config and its plan."""
        values = _values(facts, self._read)
        return digest(self._syntax_for(frozenset(_members(values)) & self._keys), values)

    @cached_property
    def _all(self) -> Mapping[Place, Definition]:
        return self._reached(None)

    @cached_property
    def _read(self) -> frozenset[str]:
        """Names of all attributes that the definitions read, and of all classes that they name."""
        classes = {place.name for place, found in self._all.items() if isinstance(found.value, type)}
        return frozenset(classes).union(*(found.attributes for found in self._all.values()))

    @cached_property
    def _keys(self) -> Members:
        return frozenset().union(*(found.keys for found in self._all.values()))

    @cached_property
    def _known(self) -> dict[Members, str]:
        return {}

    def _syntax_for(self, members: Members) -> str:
        if members not in self._known:
            reached = self._reached(members)
            numbers = {place: number for number, place in enumerate(reached)}
            rows = [[self._digest_of(found), [numbers[place] for place in found.refers]] for found in reached.values()]
            self._known[members] = digest(rows)
        return self._known[members]

    def _digest_of(self, found: Definition) -> str:
        if isinstance(found.value, type):
            return found.value.__name__  # the facts have these names
        return found.digest if found.value is None else digest(_values(found.value, self._read))

    def _reached(self, members: Members | None) -> dict[Place, Definition]:
        """The definitions by place, in the order in which they are met."""
        found: dict[Place, Definition] = {}
        waiting = [self.entry]
        for place in waiting:
            if place not in found:
                found[place] = self._definition(place, members)
                waiting += found[place].refers
        return found

    def _definition(self, place: Place, members: Members | None) -> Definition:
        """The definition at a place. A second read for members happens only where its tables have rows for others."""
        keys = frozenset() if members is None else self._all[place].keys
        return self.library.definition(place, None if members is None or members >= keys else members & keys)


def _values(value: Any, read: frozenset[str]) -> Any:
    """A value as lists. Of an object, these are the fields, properties and methods whose names are in `read`."""
    if isinstance(value, Enum):
        return [type(value).__name__, value.name, *_parts(value, read)]
    if is_dataclass(value):
        return _parts(value, read)
    if isinstance(value, (tuple, list)):
        return [_values(item, read) for item in value]
    if isinstance(value, Mapping):
        return [[_values(key, read), _values(item, read)] for key, item in value.items()]
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def _parts(value: Any, read: frozenset[str]) -> list[Any]:
    kind: Any = type(value)
    names, code = _names_of(kind, read)
    return [*code, *([name, _values(_fact(value, name), read)] for name in names)]


@cache
def _names_of(kind: type, read: frozenset[str]) -> tuple[list[str], list[Any]]:
    """The fields and properties of a type that the definitions read, and the names of its classes and methods among
    them.
    """
    fields = {field.name for field in fields_of(kind)} if is_dataclass(kind) else set()
    facts, code, waiting = set[str](), list[Any](), sorted(read)
    for name in waiting:
        found = getattr(kind, name, None)
        if name in fields or isinstance(found, (property, cached_property)):
            facts.add(name)
        elif isinstance(found, FunctionType) and not name.startswith("__"):
            method = read_method(found)
            code.append([name, method.tree])
            waiting += sorted(method.attributes.difference(waiting))
    classes = [of.__name__ for of in kind.__mro__ if of.__name__ in read]
    return sorted(facts), [*classes, *code]


def _fact(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except ArithmeticError:
        return None  # a plan has facts of groups that do not exist where there are none


def _members(facts: list[Any]) -> Iterator[tuple[str, str]]:
    """All members of enumerations among facts."""
    waiting = [facts]
    for item in waiting:
        if len(item) > 1 and isinstance(item[0], str) and isinstance(item[1], str):
            yield item[0], item[1]
        waiting += [part for part in item if type(part) is list]
