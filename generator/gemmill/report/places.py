"""Texts that do not identify a machine: replaces names of users, hosts and folders."""

import getpass
import platform
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemmill import locations, settings

_PATH = re.compile(r"\w+://[^\s'\"()<>,;]+|(?<![\w.>-])(?:~\w*)?/[\w.@+~%=:-]+(?:/[\w.@+~%=-]*)*")
"""An address or an absolute path."""
_PUBLIC = {"root", "user", "localhost"}
"""Names that many have."""


class Places:
    """The names to hide, and their replacements."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        """`folders` are hidden besides those that this process knows."""
        known = {Path.home(), Path.cwd(), Path(sys.prefix), settings.home(), *folders, *_sources()}
        spelled = {str(spelling) for path in known for spelling in (path, path.absolute(), path.resolve())}
        self._folders = sorted(spelled - {"/", "."}, key=lambda text: (-len(text), text))
        host, names = platform.node(), set[str]()
        with suppress(OSError, KeyError, ImportError):
            names.add(getpass.getuser())
        names |= {host, host.partition(".")[0], Path.home().name}
        told = sorted((name for name in names if name and name not in _PUBLIC), key=lambda name: (-len(name), name))
        self._names = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, told))})(?![\w-])") if told else None

    def hide(self, value: Any) -> Any:
        """The value, of JSON's types, with the names in its texts replaced. Keys stay."""
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        return self._hidden(value) if isinstance(value, str) else value

    def _hidden(self, text: str) -> str:
        for folder in self._folders:
            text = re.sub(rf"{re.escape(folder)}(?=/|[^\w.-]|$)", "<folder>", text)
        text = _PATH.sub("<path>", text)
        return text if self._names is None else self._names.sub("<name>", text)


def _sources() -> list[Path]:
    checkout = locations.checkout()
    return [] if checkout is None else [checkout]
