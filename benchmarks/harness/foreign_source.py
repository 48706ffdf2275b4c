"""Functions of another project's file, Triton kernels among them, without importing the project."""

import ast
import linecache
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read(source: Path, given: Mapping[str, Any], wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """The names of a file after its functions of the names `wanted` were defined, or, with None, all but its imports.

    `given` are names that it imports. Triton asks each function's module by name whether it is one of its own: without a
    `__name__` among their globals they have none, and nothing compiles. Raises OSError, and ValueError for a function that the
    file lacks.
    """
    text = source.read_text()
    names = None if wanted is None else set(wanted)
    space: dict[str, Any] = {"__name__": source.stem} | dict(given)
    linecache.cache[str(source)] = (len(text), None, text.splitlines(keepends=True), str(source))
    for node in ast.parse(text).body:
        is_taken = not isinstance(node, ast.Import | ast.ImportFrom)
        if names is not None:
            is_taken = isinstance(node, ast.FunctionDef) and node.name in names
        if is_taken:
            exec(compile(ast.Module([node], []), str(source), "exec"), space)
    if lacking := sorted((names or set()) - space.keys()):
        raise ValueError(f"{source} has no function {lacking[0]}: it is another release's")
    return space
