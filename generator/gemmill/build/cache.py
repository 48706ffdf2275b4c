"""The object cache: compiled objects, each named by the digest of its inputs.

    objects/<key>/object.o, entry.json   one translation unit; the key covers the sources' keys (`sources.Keys`) and headers
    headers/<digest>.json                a list of toolchains' headers with digests, shared by the objects made from the same ones
    index/<source key>/<key>             empty files: which objects hold a source
    choices/<digest>.json                which objects were last linked for a set of sources
    ledger/<digest>.json                 sources that do not compile

Paths inside are relative to named roots, so the folder can be copied to another machine. Every file appears by rename.
So any number of processes may use one cache without a lock, also on a network file system.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmill.build.files import FileMemo, digest, file_digest, sync_file
from gemmill.build.headers import HeaderSet, is_current
from gemmill.build.inspect import KernelFacts
from gemmill.ownership import is_trusted
from gemmill.writing import beside, write_whole

if TYPE_CHECKING:  # compiling one unit needs no registry
    from gemmill.build.sources import Source

FORMAT = 3
_SEARCH_STEPS = 20_000


@dataclass(kw_only=True)
class Entry:
    """One object and its facts."""

    key: str
    members: dict[str, str]
    """Source key to name, in the order of the translation unit."""
    headers: str
    """Digest of the header set."""
    object_sha256: str
    object_bytes: int
    cpu_seconds: float
    peak_memory_bytes: int
    facts: dict[str, KernelFacts] = field(default_factory=dict)
    """By kernel symbol."""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Objects that together hold sources, each once, and the sources that none of them holds."""

    entries: tuple[Entry, ...]
    missing: tuple["Source", ...]


class ObjectCache:
    """The cache below one folder, as this machine sees it: `roots` are its folders by name."""

    def __init__(self, folder: Path, roots: Mapping[str, Path], memo: FileMemo) -> None:
        self.folder = folder
        self._roots = roots
        self._memo = memo
        self._entries: dict[str, Entry | None] = {}
        self._current: dict[str, bool] = {}

    def object_path(self, entry: Entry) -> Path:
        """Where an entry's object lies."""
        return self.folder / "objects" / entry.key / "object.o"

    def lookup(self, sources: Sequence["Source"]) -> Lookup:
        """The objects to link for these sources; none holds any other source.

        The lookup skips an object that is damaged, or was made from other headers.
        """
        wanted = {source.key for source in sources}
        holders = {
            source.key: [
                e for key in self._indexed(source.key) if (e := self._usable(key)) and wanted.issuperset(e.members)
            ]
            for source in sources
        }
        chosen = self._chosen_before(wanted) or _cover([source.key for source in sources], holders)
        held = {key for entry in chosen for key in entry.members}
        for entry in chosen:
            self._mark_used(entry)
        return Lookup(entries=tuple(chosen), missing=tuple(s for s in sources if s.key not in held))

    def keep_choice(self, sources: Sequence["Source"], entries: Sequence[Entry]) -> None:
        """Let the next lookup of these sources find these objects again, so that the same request stays the same build.

        Objects published later may hold the same sources. Raises OSError.
        """
        path = self._choice_path({source.key for source in sources})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps([entry.key for entry in entries]))

    def _choice_path(self, wanted: set[str]) -> Path:
        return self.folder / "choices" / f"{digest(sorted(wanted))}.json"

    def _chosen_before(self, wanted: set[str]) -> list[Entry]:
        try:
            keys = json.loads(self._choice_path(wanted).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return []
        entries = [entry for key in keys if (entry := self._usable(str(key)))] if isinstance(keys, list) else []
        held = [key for entry in entries for key in entry.members]
        return entries if sorted(held) == sorted(wanted) else []

    def forget(self) -> None:
        """Forget the folder's contents as read before: other processes have added to it."""
        self._entries.clear()
        self._current.clear()

    def publish(self, object_file: Path, members: Mapping[str, str], headers: HeaderSet, **known: Any) -> Entry:
        """Take a compiled object into the cache. Raises OSError; the cache is then as it was."""
        header_digest = digest(headers)
        write = self.folder / "headers" / f"{header_digest}.json"
        if read_headers(self.folder, header_digest) is None:
            write.parent.mkdir(parents=True, exist_ok=True)
            write_whole(write, json.dumps(headers))
        entry = Entry(
            key=digest(list(members), header_digest),
            members=dict(members),
            headers=header_digest,
            object_sha256=file_digest(object_file),
            object_bytes=object_file.stat().st_size,
            **known,
        )
        target = self.folder / "objects" / entry.key
        temporary = beside(target)
        temporary.mkdir(parents=True)
        try:
            shutil.copyfile(object_file, temporary / "object.o")
            sync_file(temporary / "object.o")
            write_whole(temporary / "entry.json", json.dumps(asdict(entry), sort_keys=True))
            self._put_in_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for key in members:
            marker = self.folder / "index" / key / entry.key
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        return entry

    def _put_in_place(self, temporary: Path, target: Path) -> None:
        self._entries.pop(target.name, None)
        if self._usable(target.name):
            return  # another process was quicker, with the same result
        self._entries.pop(target.name, None)
        if target.exists():
            damaged = beside(target)
            with suppress(FileNotFoundError):  # another process moved it away
                target.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        try:
            temporary.rename(target)
        except OSError:
            if not self._usable(target.name):
                raise
        self._entries.pop(target.name, None)

    def _indexed(self, source_key: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.folder / "index" / source_key).iterdir())
        except OSError:
            return []

    def _usable(self, key: str) -> Entry | None:
        if key not in self._entries:
            entry = read_entry(self.folder / "objects" / key)
            usable = entry is not None and self._intact(entry) and self._has_current_headers(entry)
            self._entries[key] = entry if usable else None
        return self._entries[key]

    def _intact(self, entry: Entry) -> bool:
        try:
            path = self.object_path(entry)
            whole = path.stat().st_size == entry.object_bytes and self._memo.get(path) == entry.object_sha256
            return whole and is_trusted(path.parent, path.with_name("entry.json"), path)
        except OSError:
            return False

    def _has_current_headers(self, entry: Entry) -> bool:
        if entry.headers not in self._current:
            headers = read_headers(self.folder, entry.headers)
            self._current[entry.headers] = headers is not None and is_current(headers, self._roots, self._memo)
        return self._current[entry.headers]

    def _mark_used(self, entry: Entry) -> None:
        with suppress(OSError):  # a cache that is read-only or being cleaned: its age is all that suffers
            os.utime(self.object_path(entry).with_name("entry.json"))


def read_entry(folder: Path) -> Entry | None:
    """The entry in a folder of objects/, or None where there is none that can be read."""
    from gemmill.typed_json import JsonError, read_json

    try:
        entry = read_json(folder / "entry.json", Entry, "its objects compile again")
    except JsonError:
        return None
    return entry if entry.format == FORMAT and entry.key == folder.name else None


def read_headers(cache: Path, header_digest: str) -> HeaderSet | None:
    """A recorded header set, or None where it is gone or does not match its digest."""
    try:
        headers = json.loads((cache / "headers" / f"{header_digest}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return headers if digest(headers) == header_digest else None


def _cover(wanted: Sequence[str], holders: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """Entries that hold the wanted sources, none twice, and leave out as few as possible."""
    alone = [holders[key][0] for key in wanted if len(holders[key]) == 1]
    sure = {entry.key: entry for entry in alone if all(len(holders[key]) == 1 for key in entry.members)}
    held = {key for entry in sure.values() for key in entry.members}
    contested = [key for key in wanted if holders[key] and key not in held]
    return [*sure.values(), *_search(contested, holders)]


def _search(wanted: Sequence[str], holders: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """A search that takes larger objects first. Where there are too many ways to try, it returns the best that it saw."""
    best: list[Entry] = []
    fewest = len(wanted) + 1
    steps = 0
    # Rows: position in `wanted`, chosen so far, sources they hold, sources left out. The search takes the last row first.
    stack: list[tuple[int, tuple[Entry, ...], frozenset[str], int]] = [(0, (), frozenset(), 0)]
    while stack and fewest > 0 and steps < _SEARCH_STEPS:
        steps += 1
        position, chosen, held, left_out = stack.pop()
        while position < len(wanted) and wanted[position] in held:
            position += 1
        if left_out >= fewest:
            continue
        if position == len(wanted):
            best, fewest = list(chosen), left_out
            continue
        stack.append((position + 1, chosen, held, left_out + 1))
        for entry in sorted(holders[wanted[position]], key=lambda e: (len(e.members), e.key)):
            if held.isdisjoint(entry.members):
                stack.append((position + 1, (*chosen, entry), held | entry.members.keys(), left_out))
    return best
