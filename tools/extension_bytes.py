"""Say which families an extension's bytes belong to, of objects that the cache has: nothing is compiled.

    gemmill build --select default
    python tools/extension_bytes.py --select default

Counts the bytes of the objects' loaded and referenced sections, with machine code compressed as linked. The linker
merges equal data and adds tables, so the sum differs from the file's bytes by a few percent.
"""

import io
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from gemmill.build.compressing import objects_of
from gemmill.build.options import BuildOptions
from gemmill.build.planning import survey
from gemmill.build.workshop import open_workshop
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name
from gemmill.space.selections import select
from gemmill.vocab import Arch

_ROOTS = (".eh_frame", ".init_array", ".ctors")
"""Sections that the linker keeps though nothing in the object refers to them."""


def main(arguments: Sequence[str]) -> int:
    """Print a row for each family, the largest first. Returns 1 where an object is not in the cache."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--select", default="default", metavar="NAME", help="a selection; default by default")
    parser.add_argument("--arch", type=Arch, default=Arch.SM90A, help="sm90a by default")
    asked = parser.parse_args(arguments)
    selection = select(asked.select, asked.arch)
    workshop = open_workshop(asked.arch, BuildOptions())
    work = survey(selection, workshop)
    if work.found.missing:
        print(f"{work.found.missing[0].name} is not in the cache: run `gemmill build --select {asked.select}`")
        return 1
    entries, variants = work.found.entries, {source.name for source in work.variants}
    counts, sizes = Counter[str](), Counter[str]()
    for entry, path in zip(entries, objects_of(entries, work.variants, workshop), strict=True):
        for name in entry.members.values():
            family = REGISTRY.family_of(parse_name(name)).name if name in variants else name.partition("/")[0]
            counts[family] += name in variants
            sizes[family] += loaded_bytes(path) // len(entry.members)
    print(f"{'family':16}{'kernels':>8}{'MB':>8}")
    for family, size in sizes.most_common():
        print(f"{family:16}{counts[family]:8}{size / 1e6:8.2f}")
    print(f"{'sum':16}{sum(counts.values()):8}{sum(sizes.values()) / 1e6:8.2f}")
    return 0


def loaded_bytes(path: Path) -> int:
    """Bytes that an object brings into an extension's file."""
    file = ELFFile(io.BytesIO(path.read_bytes()))
    symbols = list(file.get_section_by_name(".symtab").iter_symbols())
    told = [symbol["st_shndx"] for symbol in symbols if symbol["st_info"]["bind"] != "STB_LOCAL"]
    relocations = (
        row for s in file.iter_sections() if isinstance(s, RelocationSection) for row in s.iter_relocations()
    )
    kept = {*told, *(symbols[row["r_info_sym"]]["st_shndx"] for row in relocations)}
    return sum(
        section["sh_size"]
        for number, section in enumerate(file.iter_sections())
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC and section["sh_type"] != "SHT_NOBITS"
        if number in kept or section.name.startswith(_ROOTS)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
