"""A sweep's facts, a line each, on the disk as soon as they are known. An interrupted sweep goes on from them.

The first line says what was measured on what. A candidate's fault and a workload's outcome are lines of their own. A
line that a kill cut off is left out, and what it was about is measured again. A whole line whose fields are not those
of a journal is refused.
"""

import contextlib
import fcntl
import json
import lzma
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import psutil
from msgspec import Meta, Struct

from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.device import now
from gemmill.tuner.measure import Outcome
from gemmill.tuner.protocol import workload_from_json, workload_to_json
from gemmill.tuner.workloads import Workload
from gemmill.typed_json import JsonError, MalformedError, as_kind, from_json

SCHEMA_VERSION = 2
_READ = (1, SCHEMA_VERSION)
_PACKED = ".xz"
_FIRST = b'{"kind": "sweep", '
"""The beginning of the first line."""
_BEGIN_ANOTHER = "begin another with --journal, or delete it"
_MEASURE_AGAIN = "take the line out, and what it tells is measured again"


class JournalError(RuntimeError):
    """A journal that this sweep cannot go on from; the text is one sentence."""


Key = tuple[Workload, int, int]
"""Workload, repeat and wave: the key of an outcome."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An outcome with what was decided on when it was measured."""

    outcome: Outcome
    repeat: int
    wave: int
    """The part of the candidates, where they were compiled meanwhile; 0 else."""
    present: str | None
    date: str


@dataclass(kw_only=True)
class Record:
    """All that a journal holds."""

    setup: dict[str, Any]
    begun_by: tuple[str, str] = ("", "")
    """The command that began it and the commit of its checkout; empty where an older journal or no checkout says neither."""
    entries: dict[Key, Entry] = field(default_factory=dict)
    faults: dict[Workload, dict[str, Finding]] = field(default_factory=dict)


class _SweepLine(Struct, tag_field="kind", tag="sweep"):
    """The first line."""

    setup: dict[str, Any]
    command: str = ""
    commit: str | None = ""


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


def read_journal(path: Path) -> Record:
    """The record of a journal's whole lines. One whose name ends in .xz is unpacked. Raises JournalError."""
    try:
        data = path.read_bytes()
        first, *lines = (lzma.decompress(data) if path.suffix == _PACKED else data).splitlines() or [b""]
    except lzma.LZMAError as error:
        raise JournalError(
            f"journal {path} cannot be unpacked ({error}): pack it again with xz, or name it without .xz"
        ) from None
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error.strerror}") from None
    record = _begun(path, first)
    for number, line in enumerate(lines, start=2):
        where = f"journal {path}, line {number}"
        try:
            _note(record, from_json(line, _SweepLine | _FaultLine | _OutcomeLine, where, _MEASURE_AGAIN), where)
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
    if told.get("schema_version") not in _READ:
        raise JournalError(
            f"journal {path} has schema version {told.get('schema_version')!r}, this gemmill writes {SCHEMA_VERSION}: {_BEGIN_ANOTHER}"
        )
    try:
        sweep = as_kind(told, _SweepLine, where, _BEGIN_ANOTHER)
    except JsonError as error:
        raise JournalError(str(error)) from None
    return Record(setup=sweep.setup, begun_by=(sweep.command, sweep.commit or ""))


def _note(record: Record, row: _SweepLine | _FaultLine | _OutcomeLine, where: str) -> None:
    """Raises JsonError where the line's workload is none."""
    if isinstance(row, _SweepLine):  # journals may be put one behind another
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
    outcome = Outcome(
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


def _by_build(outcome: Outcome) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for name, us in outcome.rounds_us.items():
        found.setdefault(outcome.builds[name], {})[name] = [round(t, 3) for t in us]
    return found


def _writer(path: Path) -> str:
    """The process that has a journal open, as far as this user may see it."""
    whole = str(path.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(file.path == whole and file.mode != "r" for file in process.open_files()):
                return f", process {process.pid}"
    return ""


class Journal:
    """A journal being written, by one process at a time."""

    def __init__(self, path: Path, setup: Mapping[str, Any], begun_by: tuple[str, str] = ("", "")) -> None:
        """Begin a journal, or go on with one of the same setup. Raises JournalError."""
        self.path = path
        if path.suffix == _PACKED:
            raise JournalError(
                f"journal {path} is packed, nothing can be added: unpack it, or name another with --journal"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()  # the other's alone is open
            raise JournalError(
                f"journal {path} is being written by another sweep{_writer(path)}: name another with --journal"
            ) from None
        try:
            self.record = self._begin(setup, begun_by)
        except BaseException:
            self.close()
            raise

    def _begin(self, setup: Mapping[str, Any], begun_by: tuple[str, str]) -> Record:
        if not self._has_begun():
            self._file.truncate(0)
            told = dict(zip(("command", "commit"), begun_by, strict=True))
            self._write({"kind": "sweep", "schema_version": SCHEMA_VERSION, "date": now(), "setup": setup} | told)
            return Record(setup=dict(setup), begun_by=begun_by)
        record = read_journal(self.path)
        for name in sorted(setup.keys() | record.setup.keys()):
            if (was := record.setup.get(name)) != (is_ := setup.get(name)):
                raise JournalError(
                    f"journal {self.path} is of another sweep ({name} was {was!r}, is {is_!r}): name another with --journal, "
                    "or begin again with --fresh"
                )
        self._file.seek(-1, os.SEEK_END)
        if self._file.read(1) != b"\n":
            self._file.write(b"\n")
        return record

    def _has_begun(self) -> bool:
        """Whether there is more than nothing or a part of the first line, which a kill may have left."""
        self._file.seek(0)
        line = self._file.readline()
        return bool(line) and (line.endswith(b"\n") or not (line.startswith(_FIRST) or _FIRST.startswith(line)))

    def fault(self, workload: Workload, name: str, finding: Finding) -> None:
        """Note a candidate's fault."""
        self.record.faults.setdefault(workload, {})[name] = finding
        told = {"kind": "fault", "problem": workload_to_json(workload), "candidate": name}
        self._write(told | asdict(finding) | {"date": now()})

    def outcome(self, entry: Entry) -> None:
        """Note a workload's outcome."""
        out = entry.outcome
        self.record.entries[out.workload, entry.repeat, entry.wave] = entry
        self._write(
            {
                "kind": "outcome",
                "problem": workload_to_json(out.workload),
                "repeat": entry.repeat,
                "wave": entry.wave,
                "present": entry.present,
                "rounds_us": _by_build(out),
                "faults": {name: asdict(finding) for name, finding in out.findings.items()},
                "device": out.device,
                "state": out.state,
                "checking_seconds": round(out.checking_seconds, 3),
                "seconds": round(out.seconds, 3),
                "error": out.error,
                "date": entry.date,
            }
        )

    def close(self) -> None:
        """Give up the lock."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
