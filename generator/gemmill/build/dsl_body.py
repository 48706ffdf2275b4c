"""What the CuTe DSL makes a kernel's machine code from, read without the DSL.

That is the syntax of the modules for its compiler, and the facts of a config's plan that these modules read.
A dtype, a format or a module that a kernel has nothing to do with changes neither.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from inspect import getsource, isfunction
from pathlib import Path
from textwrap import dedent
from typing import Any

from gemmill.build.files import digest
from gemmill.family import Config, DslBody

_ROOT = Path(__file__).resolve().parents[2]
_FOR_DSL = {"cutlass", "cuda"}
"""Packages that only modules for the DSL's compiler import."""
_NO_MEANING = {"ctx", "kind", "type_comment", "type_params"}
"""Fields of syntax trees that follow from others, or that not every release of Python has."""

Members = frozenset[tuple[str, str]]
"""Members of enumerations, as type and name."""


def dsl_digest(dsl: DslBody, config: Config) -> str:
    """The digest of the kernel that the DSL makes of a config.

    Raises ValueError for a config that no kernel can be made of.
    """
    return body_of(dsl.entry, _ROOT).digest_for(dsl.facts(config.compiled))


@cache
def body_of(entry: str, root: Path) -> "Body":
    """The modules below `root` that are for the DSL's compiler, from `entry` on. Raises OSError, SyntaxError."""
    found: dict[str, ast.Module] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if name in found or not path.is_file():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = list(_imports(tree))
        if _FOR_DSL & {module.split(".")[0] for module, _ in imports}:
            found[name] = tree
            waiting += [part for module, item in imports for part in (module, f"{module}.{item}")]
    return Body(modules=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """What all kernels of the DSL share."""

    modules: Mapping[str, ast.Module]

    def digest_for(self, plan: Any) -> str:
        """The digest of the kernel with the facts of `plan`."""
        facts = _facts(plan, self._read)
        return digest(self._syntax_for(frozenset(_members(facts)) & self._keys), self._constants, facts)

    @cached_property
    def _read(self) -> frozenset[str]:
        """Names of all attributes that the modules read."""
        return frozenset(node.attr for node in self._nodes() if isinstance(node, ast.Attribute))

    @cached_property
    def _keys(self) -> Members:
        """Members of enumerations by which the modules' tables are read."""
        keys = (key for node in self._nodes() if isinstance(node, ast.Dict) for key in node.keys)
        return frozenset(member for key in keys if (member := _member(key)) is not None)

    @cached_property
    def _constants(self) -> list[Any]:
        """Values and functions that the modules import from others of gemmill; of classes the facts have what is read."""
        pairs = {pair for tree in self.modules.values() for pair in _imports(tree) if pair[0].startswith("gemmill.")}
        others = [pair for pair in sorted(pairs) if not self.modules.keys() & {pair[0], ".".join(pair)}]
        taken = [(name, getattr(import_module(module), name)) for module, name in others]
        return [
            [name, _syntax(ast.parse(dedent(getsource(value))), None) if isfunction(value) else _facts(value, ())]
            for name, value in taken
            if not isinstance(value, type)
        ]

    @cached_property
    def _known(self) -> dict[Members, list[Any]]:
        return {}

    def _syntax_for(self, members: Members) -> list[Any]:
        """The modules' syntax, in an order that does not depend on their names."""
        if members not in self._known:
            self._known[members] = sorted(digest(_syntax(tree, members)) for tree in self.modules.values())
        return self._known[members]

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for tree in self.modules.values() for node in ast.walk(tree))


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each import. The name is empty where a whole module is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _member(key: ast.expr | None) -> tuple[str, str] | None:
    """The enumeration's member that a table's key spells, `Type.NAME`."""
    if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.attr.isupper():
        return key.value.id, key.attr
    return None


def _syntax(node: Any, members: Members | None) -> Any:
    """A syntax tree as lists, without imports and without texts that only readers see.

    Rows of tables for members that are not among `members` are left out. With None no row is left out.
    """
    if isinstance(node, list):
        return [_syntax(item, members) for item in node if not _is_for_readers(item)]
    if not isinstance(node, ast.AST):
        return node if node is None or isinstance(node, (str, int)) else repr(node)
    parts = dict(ast.iter_fields(node))
    if isinstance(node, ast.Dict) and members is not None:
        rows = [row for row in zip(node.keys, node.values, strict=True) if _member(row[0]) in {None, *members}]
        parts = {"rows": [part for row in rows for part in row]}
    kept = {name: value for name, value in parts.items() if name not in _NO_MEANING and value not in (None, [])}
    return [type(node).__name__, *([name, _syntax(value, members)] for name, value in kept.items())]


def _is_for_readers(node: Any) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def _facts(value: Any, read: Iterable[str]) -> Any:
    """A value as lists. Of an object, these are the fields and properties whose names are in `read`."""
    if isinstance(value, Enum):
        return [type(value).__name__, value.name, *_parts(value, read, ())]
    if is_dataclass(value):
        return _parts(value, read, [field.name for field in fields_of(value)])
    if isinstance(value, (tuple, list)):
        return [_facts(item, read) for item in value]
    if isinstance(value, Mapping):
        return [[_facts(key, read), _facts(item, read)] for key, item in value.items()]
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def _parts(value: Any, read: Iterable[str], fields: Iterable[str]) -> list[Any]:
    kinds = (property, cached_property)
    names = {name for name in read if isinstance(getattr(type(value), name, None), kinds)} | set(read) & set(fields)
    return [[name, _facts(_fact(value, name), read)] for name in sorted(names)]


def _fact(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except ArithmeticError:
        return None  # a plan has facts of groups that do not exist where there are none


def _members(facts: Any) -> Iterator[tuple[str, str]]:
    """All members of enumerations among facts."""
    if isinstance(facts, list):
        if len(facts) > 1 and isinstance(facts[0], str) and isinstance(facts[1], str):
            yield facts[0], facts[1]
        for item in facts:
            yield from _members(item)
