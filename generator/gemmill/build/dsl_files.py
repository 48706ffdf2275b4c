"""gemmill's own files that a kernel of the CuTe DSL is made from, beside its emitted file.

They are the kernel bodies, and what a config's fields mean. A kernel is made from those that its family's modules import,
directly or through others. Comments and docstrings say nothing to the compiler, and do not count.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from gemmill.build.files import FileMemo, digest
from gemmill.emit.adapter import ADAPTER
from gemmill.locations import templates_dir

PACKAGE = Path(__file__).resolve().parents[1]
_MEANING = ("gemm/*.py", "families/*/dsl/*.py", "families/*/*config.py", "vocab/*.py")

Rows = tuple[tuple[str, str], ...]
"""Names of files below the package, and the digests of what they say."""


def made_from(memo: FileMemo) -> Rows:
    """Name and digest of every such file, of all families, by name. Raises OSError, SyntaxError."""
    paths = (path for pattern in _MEANING for path in PACKAGE.glob(pattern))
    rows = [(path.relative_to(PACKAGE).as_posix(), memo.get(path, _syntax_digest, kind="syntax")) for path in paths]
    return tuple(sorted([*rows, (ADAPTER, memo.get(templates_dir() / ADAPTER))]))


def reached(modules: Iterable[str], rows: Rows, memo: FileMemo) -> Rows:
    """The rows of files that the modules import, directly or through others, and their own; always the adapter's.

    These are all rows where a module is not gemmill's: what it imports is not followed. Raises OSError, SyntaxError.
    """
    names, waiting = {ADAPTER}, [_path_of(module) for module in modules]
    while waiting:
        path = waiting.pop()
        if path is None:
            return rows
        name = path.relative_to(PACKAGE).as_posix()
        if name not in names:
            names.add(name)
            waiting += [found for module in memo.get(path, _imports, kind="imports") if (found := _path_of(module))]
    return tuple(row for row in rows if row[0] in names)


def _path_of(module: str) -> Path | None:
    """The file of a module of gemmill; None where it is no module of its own."""
    package, *parts = module.split(".")
    if package != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports(path: Path) -> list[str]:
    """Dotted names that a file imports: of `from a import b` both `a` and `a.b`, one of which may be no module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(name for name in names if name.split(".")[0] == PACKAGE.name)


def _syntax_digest(path: Path) -> str:
    """The digest of a file's syntax tree without the texts that only readers see."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [statement for statement in statements if not _is_text(statement)])
    return digest(ast.dump(tree))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
