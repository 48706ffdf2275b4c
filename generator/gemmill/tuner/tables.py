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
from gemmill.space.names import parse_name
from gemmill.tuner.checking import Fault
from gemmill.tuner.choice import MARGIN, Decision, decide
from gemmill.tuner.orders import fastest_of_orders, order_of
from gemmill.tuner.protocol import PEER
from gemmill.tuner.record import Entry, MeasuredBuild, Record
from gemmill.tuner.sweep import runs_of, variants_only
from gemmill.tuner.workloads import Workload
from gemmill.writing import write_whole

KEPT = 4
"""Variants kept in a row, so that a build without the first still has a measured choice. The fastest of each other order stays, too."""
PROGRAM = "gemmill tune"
NO_DEVICE = "dry run"


def measured_build(manifest: Manifest) -> MeasuredBuild:
    """The facts of a build for journals and tables."""
    return MeasuredBuild(
        build_id=manifest.build_id,
        arch=manifest.arch,
        nvcc=manifest.toolchain.nvcc,
        digests={
            entry.name: (entry.source_digest[:DIGEST_CHARACTERS], machine_code(entry))
            for entry in manifest.entries
            if entry.source_digest
        },
    )


def builds_measured(record: Record) -> dict[str, MeasuredBuild]:
    """The measured builds, by folder: for one without a line in the journal, the facts that its variants' names give."""
    builds = dict(record.builds)
    for entry in record.entries.values():
        for name, folder in entry.outcome.builds.items():
            if folder != PEER and folder not in builds:
                arch = str(parse_name(name).arch)
                builds[folder] = MeasuredBuild(build_id=Path(folder).name, arch=arch, nvcc="", digests={})
    return builds


def tables_of(record: Record, repeats: int, margin: float = MARGIN) -> list[TunedTable]:
    """A table for each device, with a row for each workload that has a measured variant.

    A row of a build without a line in the journal has no digests: it counts whatever its kernels are.
    """
    builds = builds_measured(record)
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
        build = builds[last.outcome.builds[decision.chosen]]
        key = f"{last.date[:10]} {build.build_id}"
        known = sources.setdefault(device, {})
        known[key] = _source(last, build, known.get(key))
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
    """Replace the rows that the table has in the file's; returns the merged table. Raises TableError, OSError.

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
    """A lock that one process or thread holds, and that it gives up when a signal kills it.

    It is a file next to the table, which stays. Writers replace the table itself, and a lock on a removed file would
    let two in. NFS locks it for all its clients.
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


def _row(
    workload: Workload, decision: Decision, entry: Entry, builds: Mapping[str, MeasuredBuild], source: str
) -> TableRow:
    first = decision.ranked[:KEPT]
    names = tuple(dict.fromkeys([*first, *_of_other_orders(decision, first)]))
    told = {name: digests for build in builds.values() for name, digests in build.digests.items()}
    known = tuple(told.get(name, ("", ""))[0] for name in names)
    codes = tuple(told.get(name, ("", ""))[1] for name in names)
    return TableRow(
        op=workload.op,
        sizes=in_order(workload.sizes),
        variants=names,
        us=tuple(round(decision.us[name], 3) for name in names),
        digests=known if all(known) else (),
        codes=codes if all(known) and any(codes) else (),
        tied=len(decision.tied),
        source=source,
    )


def _of_other_orders(decision: Decision, first: Sequence[str]) -> Iterator[str]:
    """The fastest of each order of K that none of the first has: batch invariance compares orders by them."""
    known = set(map(order_of, first))
    return (name for name in fastest_of_orders(decision.us) if order_of(name) not in known)


def _quarantined(workload: Workload, entry: Entry, builds: Mapping[str, MeasuredBuild]) -> Iterator[Quarantined]:
    """The variants that went wrong, each as every build has it. One that refused a call harmed nobody."""
    for name, finding in entry.outcome.findings.items():
        why = f"{finding.fault} at {workload.op} {workload.shape} on {entry.date[:10]}: {finding.detail}"
        for build in builds.values():
            if name in build.digests and finding.fault is not Fault.REFUSED:
                digest, code = build.digests[name]
                yield Quarantined(variant=name, digest=digest, code=code, why=why)


def _source(entry: Entry, build: MeasuredBuild, before: Source | None) -> Source:
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
        toolkit=build.nvcc or None,
        build=build.build_id,
        clocks_mhz=clocks,
    )
