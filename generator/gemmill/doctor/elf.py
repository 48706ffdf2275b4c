"""What a shared library asks of others and gives to them, read from its ELF tables without loading it.

64-bit little-endian files, as on every machine that gemmill builds for. Layout: System V ABI, chapters 4 and 5.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEEDED_VERSIONS = struct.Struct("<HHIII")
_NEEDED_VERSION = struct.Struct("<IHHII")
_DYNAMIC_SECTION, _SYMBOLS_SECTION, _VERSIONS_SECTION = 6, 11, 0x6FFFFFFE
_NEEDED = 1
_WEAK = 2


class ElfError(Exception):
    """The file is not a whole 64-bit shared library; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """The dynamic tables of one shared library."""

    needed: tuple[str, ...]
    """File names of the libraries that the loader brings in with it."""
    required: frozenset[str]
    """Symbols that some other library must define."""
    optional: frozenset[str]
    """Weak undefined symbols: null where no library defines them."""
    defined: frozenset[str]
    machine: int = 0
    """ELF's number of the processor."""
    versions: frozenset[str] = frozenset()
    """Of the symbols that others must define, as GLIBC_2.34."""


def read_library(path: Path) -> Library:
    """Read the dynamic tables of a shared library. Raises ElfError, OSError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data, path)
    except (struct.error, ValueError, IndexError) as error:
        raise ElfError(f"{path} is not a whole shared library ({error})") from None


def _parse(data: mmap.mmap, path: Path) -> Library:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"{path} is not a 64-bit little-endian ELF file")
    table_offset = struct.unpack_from("<Q", data, 40)[0]
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, table_offset + i * entry_size) for i in range(count)]
    needed: list[str] = []
    required: set[str] = set()
    optional: set[str] = set()
    defined: set[str] = set()
    versions: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind not in (_DYNAMIC_SECTION, _SYMBOLS_SECTION, _VERSIONS_SECTION):
            continue
        content = data[offset : offset + size]
        strings = data[sections[link][4] : sections[link][4] + sections[link][5]]
        if kind == _DYNAMIC_SECTION:
            needed += [_text(strings, value) for tag, value in _DYNAMIC.iter_unpack(content) if tag == _NEEDED]
        elif kind == _VERSIONS_SECTION:
            versions.update(_versions(content, strings))
        else:
            for name, info, _, section, _, _ in _SYMBOL.iter_unpack(content):
                group = defined if section else optional if info >> 4 == _WEAK else required
                group.add(_text(strings, name))
    for group in (required, optional, defined):
        group.discard("")
    return Library(
        needed=tuple(needed),
        required=frozenset(required),
        optional=frozenset(optional),
        defined=frozenset(defined),
        machine=struct.unpack_from("<H", data, 18)[0],
        versions=frozenset(versions),
    )


def _versions(content: bytes, strings: bytes) -> Iterator[str]:
    """The chains of a section of needed versions: libraries, and of each its versions."""
    library = 0
    while True:
        _, count, _, first, following = _NEEDED_VERSIONS.unpack_from(content, library)
        version = library + first
        for _ in range(count):
            *_, name, step = _NEEDED_VERSION.unpack_from(content, version)
            yield _text(strings, name)
            version += step
        if not following:
            return
        library += following


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode("ascii", "replace")
