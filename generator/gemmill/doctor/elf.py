"""The ELF tables of a shared library, read by pyelftools: the symbols that it needs and those that it exports. The
reader does not load it.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.hash import ELFHashSection, GNUHashSection

_UNDEFINED = "SHN_UNDEF"


class ElfError(Exception):
    """The file is not a whole shared library; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """The requirements of one shared library on others."""

    needed: tuple[str, ...]
    """File names of the libraries that the loader brings in with it."""
    required: frozenset[str]
    """Symbols that some other library must define."""
    optional: frozenset[str]
    """Weak undefined symbols: null where no library defines them."""
    machine: str = ""
    """ELF's name of the processor, as EM_X86_64."""
    versions: frozenset[str] = frozenset()
    """Versions of the symbols that others must define, as GLIBC_2.34."""


def read_library(path: Path) -> Library:
    """Read the dynamic tables of a shared library. Raises ElfError, OSError."""
    with _opened(path) as elf:
        undefined = [symbol for symbol in _symbols(elf) if symbol["st_shndx"] == _UNDEFINED]
        weak = {symbol.name for symbol in undefined if symbol["st_info"]["bind"] == "STB_WEAK"}
        return Library(
            needed=tuple(tag.needed for part in _parts(elf, DynamicSection) for tag in part.iter_tags("DT_NEEDED")),
            required=frozenset({symbol.name for symbol in undefined} - weak - {""}),
            optional=frozenset(weak - {""}),
            machine=elf["e_machine"],
            versions=frozenset(
                version.name
                for part in _parts(elf, GNUVerNeedSection)
                for _, versions in part.iter_versions()
                for version in versions
            ),
        )


def defined_in(path: Path, names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that a shared library defines. Its hash table finds them, as the loader does.

    Raises ElfError, also where the library has no such table, and OSError.
    """
    with _opened(path) as elf:
        table = next(_parts(elf, GNUHashSection, ELFHashSection), None)
        if table is None:
            raise ElfError(f"{path} has no hash table of its symbols: link it with --hash-style=gnu")
        found = ((name, table.get_symbol(name)) for name in names)
        return frozenset(name for name, symbol in found if symbol is not None and symbol["st_shndx"] != _UNDEFINED)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        try:
            yield ELFFile(file)
        # Errors of pyelftools and the parser below it on a truncated file, or one that is no ELF file.
        except (ELFError, ConstructError, struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = str(error) or type(error).__name__
            raise ElfError(f"{path} is not a whole shared library ({reason})") from None


def _parts(elf: Any, *kinds: type) -> Iterator[Any]:
    return (section for section in elf.iter_sections() if isinstance(section, kinds))


def _symbols(elf: Any) -> Iterator[Any]:
    for table in elf.iter_sections("SHT_DYNSYM"):
        yield from table.iter_symbols()
