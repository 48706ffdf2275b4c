"""Tuned tables of a journal, one for each device that measured."""

import fcntl
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gemmill.manifest import Manifest
from gemmill.runtime.machine_code import DIGEST_CHARACTERS, machine_code, noted
from gemmill.runtime.table_file import (
    Quarantined,
    Source,
    TableError,
    TableRow,
    TunedTable,
    in_order,
    make_table,
    merge,
    read_table,
    table_text,
)
from gemmill.tuner.checking import Fault
from gemmill.tuner.choice import MARGIN, Decision, decide
from gemmill.tuner.record import Entry, Record
from gemmill.tuner.sweep import runs_of, variants_only
from gemmill.tuner.workloads import Workload
from gemmill.writing import write_whole

KEPT = 4
"""Variants kept in a row, so that a build without the first still has a measured choice."""
PROGRAM = "gemmill tune"
NO_DEVICE = "dry run"


def tables_of(record: Record, builds: Mapping[str, Manifest], repeats: int, margin: float = MARGIN) -> list[TunedTable]:
    """A table for each device, with a row for each workload of which a variant was timed. `builds` is by folder."""
    sources: dict[str, dict[str, Source]] = {}
    rows: dict[str, list[TableRow]] = {}
    quarantined: dict[str, list[Quarantined]] = {}
    for workload, entries in runs_of(record, repeats).items():
        for entry in entries:
            device = entry.outcome.device.get("gpu") or NO_DEVICE
            quarantined.setdefault(device, []).extend(_quarantined(workload, entry, builds))
        decision = decide_all(entries, margin)
        if decision is None:
            continue
        last = entries[-1]
        device = last.outcome.device.get("gpu") or NO_DEVICE
        manifest = builds[last.outcome.builds[decision.chosen]]
        key = f"{last.date[:10]} {manifest.build_id}"
        known = sources.setdefault(device, {})
        known[key] = _source(last, manifest, known.get(key))
        rows.setdefault(device, []).append(_row(workload, decision, last, builds, key))
    arch = next(iter(builds.values())).arch if builds else ""
    return [
        make_table(device, arch, sources[device], found, quarantined[device]) for device, found in sorted(rows.items())
    ]


def decide_all(entries: Sequence[Entry], margin: float = MARGIN) -> Decision | None:
    """The decision on the rounds of all runs together, between the variants that ran to the end in each."""
    timed = [variants_only(entry.outcome.rounds_us) for entry in entries]
    complete = [{name: us for name, us in run.items() if len(us) == max(map(len, run.values()))} for run in timed]
    complete = [run for run in complete if run]
    if not complete:
        return None
    shared = set.intersection(*(set(run) for run in complete))
    pooled = {name: [us for run in complete for us in run[name]] for name in sorted(shared)}
    return decide(pooled or complete[-1], entries[-1].present, margin)


def write_table(table: TunedTable, path: Path) -> TunedTable:
    """Replace the rows that the table has in the file's; returns what was written. Raises TableError, OSError.

    One process after another, so that two sweeps that end together both have their rows in it.
    """
    with _lock(path):
        merged = merge(read_table(path), table) if path.exists() else table
        write_whole(path, table_text(merged))
    return merged


def note_machine_code(path: Path, builds: Sequence[Manifest]) -> None:
    """Let a table's file say which machine code was measured, as far as the builds know it.

    Raises TableError, OSError.
    """
    with _lock(path):
        table = read_table(path)
        if (found := noted(table, [build for build in builds if build.arch == table.arch])) != table:
            write_whole(path, table_text(found))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """A lock that one process or thread holds, and that one which is killed gives up.

    It is a file beside the table, which stays. The table itself is replaced, and a lock on a file that is removed
    would let two in. NFS locks it for all its clients.
    """
    beside = path.with_name(f".{path.name}.lock")
    with beside.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise TableError(
                f"table {path} cannot be locked against another sweep's writing it ({error.strerror}): put it on another file "
                "system with --table, or with `gemmill table make JOURNAL --out FILE`"
            ) from None
        yield


def _row(workload: Workload, decision: Decision, entry: Entry, builds: Mapping[str, Manifest], source: str) -> TableRow:
    names = decision.ranked[:KEPT]
    entries = {e.name: e for manifest in builds.values() for e in manifest.entries}
    known = [entries[name].source_digest if name in entries else "" for name in names]
    codes = tuple(machine_code(entries[name]) if name in entries else "" for name in names)
    return TableRow(
        op=workload.op,
        sizes=in_order(workload.sizes),
        variants=names,
        us=tuple(round(decision.us[name], 3) for name in names),
        digests=tuple(digest[:DIGEST_CHARACTERS] for digest in known) if all(known) else (),
        codes=codes if all(known) and any(codes) else (),
        tied=len(decision.tied),
        source=source,
    )


def _quarantined(workload: Workload, entry: Entry, builds: Mapping[str, Manifest]) -> Iterator[Quarantined]:
    """The variants that went wrong, each as every build has it. One that refused a call harmed nobody."""
    for name, finding in entry.outcome.findings.items():
        why = f"{finding.fault} at {workload.op} {workload.shape} on {entry.date[:10]}: {finding.detail}"
        for manifest in builds.values():
            for known in manifest.entries:
                if known.name == name and known.source_digest and finding.fault is not Fault.REFUSED:
                    digest, code = known.source_digest[:DIGEST_CHARACTERS], machine_code(known)
                    yield Quarantined(variant=name, digest=digest, code=code, why=why)


def _source(entry: Entry, manifest: Manifest, before: Source | None) -> Source:
    device, state = entry.outcome.device, entry.outcome.state
    clocks = {name: float(state[name]["median"]) for name in ("clocks.sm", "clocks.mem", "power.draw") if name in state}
    if before is not None:
        clocks = {
            name: round(statistics.fmean((before.clocks_mhz.get(name, mhz), mhz)), 1) for name, mhz in clocks.items()
        }
    return Source(
        gpu=device.get("gpu") or NO_DEVICE,
        date=entry.date,
        program=PROGRAM,
        sm_count=device.get("sm_count"),
        driver=device.get("driver"),
        toolkit=manifest.toolchain.nvcc or None,
        build=manifest.build_id,
        clocks_mhz=clocks,
    )
