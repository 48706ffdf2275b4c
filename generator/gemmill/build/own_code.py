"""gemmill's own C++ and CUDA as a compiler reads it: texts without comments, and the headers that they name in quotes.

The digest of a text has the digests of these headers in place of their names, and a header that only names another
counts as that one. So a comment, and a header with a new name or place, make no other object. Preprocessing would say
the same of the conditions that hold, and takes seconds for each unit; here all that a text names counts.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from gemmill.build.files import FileMemo, digest

_TOKEN = re.compile(
    r"""
    R"(?P<end>\w*)\(.*?\)(?P=end)"
    | "(?:\\.|[^"\\\n])*"
    | \b\d(?:'?\w)*                                # a quote within a number begins no text
    | '(?:\\.|[^'\\\n])*'
    | (?P<comment>[ \t]*(?://[^\n]*|/\*.*?\*/)[ \t]*)
    """,
    re.DOTALL | re.VERBOSE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


_NAMES_ANOTHER = digest("#pragma once\n#include")
"""Digest of the code of a header with one `#include` and no more."""


def without_comments(text: str) -> str:
    """A text with a blank for each comment."""
    return _TOKEN.sub(lambda match: " " if match["comment"] else match[0], text)


def included(text: str, folders: Sequence[Path]) -> set[Path]:
    """Files below the folders that a C++ text includes by name in quotes, itself or through one another. Raises OSError."""
    found: set[Path] = set()
    waiting = [text]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            path = _find(name, folders)
            if path is not None and path not in found:
                found.add(path)
                waiting.append(path.read_text(encoding="utf-8"))
    return found


class OwnCode:
    """Digests of texts that include headers below `folders`, as these are at the first read."""

    def __init__(self, folders: Sequence[Path], memo: FileMemo) -> None:
        self._folders = folders
        self._memo = memo
        self._headers: dict[str, str] = {}

    def digest(self, text: str) -> str:
        """The digest of a text and of the headers that it includes. Raises OSError."""
        code, names = _read(text)
        return digest(code, [self._header(name) for name in names])

    def _header(self, name: str) -> str:
        if name not in self._headers:
            path = _find(name, self._folders)
            self._headers[name] = name  # of a header that is not ours, or that includes itself
            if path is not None:
                code, names = self._memo.get(path, _read_file, kind="code")
                inner = [self._header(named) for named in names]
                self._headers[name] = inner[0] if code == _NAMES_ANOTHER and len(inner) == 1 else digest(code, inner)
        return self._headers[name]


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read_file(path: Path) -> list[object]:
    code, names = _read(path.read_text(encoding="utf-8"))
    return [digest(code), names]


def _read(text: str) -> tuple[str, list[str]]:
    """The lines that a compiler reads, and the names that they include in quotes, which the lines lack."""
    code = without_comments(text)
    lines = _INCLUDE.sub("#include", code).splitlines()
    if 'R"' not in code:  # blanks of such a text are its own
        lines = [stripped for line in lines if (stripped := line.strip())]
    return "\n".join(lines), _INCLUDE.findall(code)
