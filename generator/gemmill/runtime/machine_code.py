"""The kernel of a measured time: the one with the same inputs, or the one with the same machine code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gemmill.manifest import KernelEntry, Manifest
from gemmill.runtime.table_file import Quarantined, TableRow, TunedTable, make_table

DIGEST_CHARACTERS = 16
"""The number of characters of a digest that rows keep."""


def machine_code(entry: KernelEntry) -> str:
    """The digest of a variant's machine code as rows keep it, with its registers; empty where either is unknown."""
    return f"{entry.sass_digest[:DIGEST_CHARACTERS]}r{entry.registers}" if entry.sass_digest else ""


def is_same(entry: KernelEntry, digest: str, code: str) -> bool:
    """Whether a variant is the measured one: by the digest of its sources, or else by its machine code."""
    return entry.source_digest.startswith(digest) or (code != "" and code == machine_code(entry))


def noted(table: TunedTable, builds: Sequence[Manifest]) -> TunedTable:
    """The table with the machine code of its variants, where one of the builds has the measured ones.

    So rows follow the code into builds from other sources. The first build counts.
    """
    entries = [{entry.name: entry for entry in build.entries} for build in builds]
    rows = [_noted_row(row, entries) for row in table.rows]
    withheld = [_noted_fault(fault, entries) for fault in table.quarantined]
    return make_table(table.device, table.arch, table.sources, rows, withheld)


def _noted_row(row: TableRow, builds: Iterable[Mapping[str, KernelEntry]]) -> TableRow:
    if not row.digests:
        return row
    measured = zip(row.variants, row.digests, row.codes or ("",) * len(row.variants), strict=True)
    found = [_noted(name, digest, code, builds) for name, digest, code in measured]
    digests, codes = zip(*found, strict=True)
    return replace(row, digests=digests, codes=codes if any(codes) else ())


def _noted_fault(fault: Quarantined, builds: Iterable[Mapping[str, KernelEntry]]) -> Quarantined:
    digest, code = _noted(fault.variant, fault.digest, fault.code, builds)
    return replace(fault, digest=digest, code=code)


def _noted(name: str, digest: str, code: str, builds: Iterable[Mapping[str, KernelEntry]]) -> tuple[str, str]:
    """Digest and machine code of a measured variant, from the first build with that digest."""
    entries = [build[name] for build in builds if name in build and is_same(build[name], digest, code)]
    exact = [entry for entry in entries if entry.source_digest.startswith(digest) and machine_code(entry)]
    for entry in exact or entries:
        return entry.source_digest[:DIGEST_CHARACTERS], machine_code(entry) or code
    return digest, code
