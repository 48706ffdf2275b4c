"""The lines of a journal, decoded into a class for each kind: by msgspec, which a machine that begins a sweep can do
without.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.protocol import workload_from_json
from gemmill.tuner.record import READ_VERSIONS, SCHEMA_VERSION, Entry, JournalError, MeasuredBuild, Record
from gemmill.tuner.workloads import Workload
from gemmill.typed_json import JsonError, MalformedError, as_kind, from_json

_BEGIN_ANOTHER = "begin another with --journal, or delete it"
_MEASURE_AGAIN = "take the line out, and the sweep measures its subject again"


class _SweepLine(Struct, tag_field="kind", tag="sweep"):
    """The first line."""

    setup: dict[str, Any]
    command: str = ""
    commit: str | None = ""


class _BuildLine(Struct, tag_field="kind", tag="build"):
    """The line on a build before its measurement."""

    folder: str
    build_id: str
    arch: str
    nvcc: str
    digests: dict[str, tuple[str, str]]


class _FaultLine(Struct, tag_field="kind", tag="fault"):
    problem: Any
    candidate: str
    fault: Fault
    detail: str


class _OutcomeLine(Struct, tag_field="kind", tag="outcome"):
    problem: Any
    repeat: int
    wave: int
    present: str | None
    rounds_us: dict[str, dict[str, tuple[Annotated[float, Meta(gt=0)], ...]]]
    """The rounds of each candidate, by build."""
    faults: dict[str, Finding]
    device: dict[str, Any]
    state: dict[str, Any]
    checking_seconds: float
    seconds: float
    error: str | None
    date: str


def record_of(path: Path, lines: Sequence[bytes]) -> Record:
    """The record of the lines of the journal at `path`. Raises JournalError."""
    first, *others = lines or [b""]
    record = _begun(path, first)
    for number, line in enumerate(others, start=2):
        where = f"journal {path}, line {number}"
        try:
            _note(
                record,
                from_json(line, _SweepLine | _BuildLine | _FaultLine | _OutcomeLine, where, _MEASURE_AGAIN),
                where,
            )
        except MalformedError:  # a kill cut it off
            continue
        except JsonError as error:
            raise JournalError(str(error)) from None
    return record


def _begun(path: Path, line: bytes) -> Record:
    """The record of a journal's first line, with nothing in it."""
    where = f"journal {path}, line 1"
    try:
        told = from_json(line, dict[str, Any], where, _BEGIN_ANOTHER)
    except JsonError:
        told = {}
    if told.get("kind") != "sweep":
        raise JournalError(f"{path} is no journal of a sweep: name another file, or leave --journal out")
    if told.get("schema_version") not in READ_VERSIONS:
        raise JournalError(
            f"journal {path} has schema version {told.get('schema_version')!r}, this gemmill writes {SCHEMA_VERSION}: {_BEGIN_ANOTHER}"
        )
    try:
        sweep = as_kind(told, _SweepLine, where, _BEGIN_ANOTHER)
    except JsonError as error:
        raise JournalError(str(error)) from None
    return Record(setup=sweep.setup, begun_by=(sweep.command, sweep.commit or ""))


def _note(record: Record, row: _SweepLine | _BuildLine | _FaultLine | _OutcomeLine, where: str) -> None:
    """Raises JsonError where the line's workload is none."""
    if isinstance(row, _SweepLine):  # journals may be put one behind another
        return
    if isinstance(row, _BuildLine):
        record.builds[row.folder] = MeasuredBuild(
            build_id=row.build_id, arch=row.arch, nvcc=row.nvcc, digests=row.digests
        )
        return
    try:
        workload = workload_from_json(row.problem)
    except (KeyError, TypeError, ValueError) as error:
        raise JsonError(f"{where}, problem: {row.problem!r} is no workload ({error}); {_MEASURE_AGAIN}") from None
    if isinstance(row, _FaultLine):
        record.faults.setdefault(workload, {})[row.candidate] = Finding(fault=row.fault, detail=row.detail)
    else:
        record.entries[workload, row.repeat, row.wave] = _entry(workload, row)


def _entry(workload: Workload, row: _OutcomeLine) -> Entry:
    outcome = TaskOutcome(
        workload=workload,
        rounds_us={name: us for timed in row.rounds_us.values() for name, us in timed.items()},
        findings=row.faults,
        builds={name: build for build, timed in row.rounds_us.items() for name in timed},
        device=row.device,
        state=row.state,
        checking_seconds=row.checking_seconds,
        seconds=row.seconds,
        error=row.error,
    )
    return Entry(outcome=outcome, repeat=row.repeat, wave=row.wave, present=row.present, date=row.date)
