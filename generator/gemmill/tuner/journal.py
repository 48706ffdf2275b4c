"""What a sweep knows, a line for each fact, on disk when it is known: an interrupted sweep goes on from it.

The first line says what was measured on what; a fault of a candidate and the outcome of a workload are lines of their own.
A line that a kill cut off, or that lacks a field, is left out: what it was about is measured again.
"""

import contextlib
import fcntl
import json
import lzma
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.device import now
from gemmill.tuner.measure import Outcome
from gemmill.tuner.protocol import workload_from_json, workload_to_json
from gemmill.tuner.workloads import Workload

SCHEMA_VERSION = 2
_READ = (1, SCHEMA_VERSION)
_PACKED = ".xz"
_FIRST = b'{"kind": "sweep", '
"""How the first line begins."""


class JournalError(RuntimeError):
    """A journal that this sweep cannot go on from; the text is one sentence."""


Key = tuple[Workload, int, int]
"""(workload, repeat, wave): what an outcome is about."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An outcome with what was decided on when it was measured."""

    outcome: Outcome
    repeat: int
    wave: int
    """Which part of the candidates, where they were compiled meanwhile; 0 else."""
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


def read_journal(path: Path) -> Record:
    """Read what is whole; one whose name ends in .xz is unpacked. Raises JournalError."""
    try:
        data = path.read_bytes()
        lines = (lzma.decompress(data) if path.suffix == _PACKED else data).decode(errors="replace").splitlines()
    except lzma.LZMAError as error:
        raise JournalError(
            f"journal {path} cannot be unpacked ({error}): pack it again with xz, or name it without .xz"
        ) from None
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error.strerror}") from None
    rows = [row for line in lines if (row := _parsed(line)) is not None]
    if not rows or rows[0].get("kind") != "sweep":
        raise JournalError(f"{path} is no journal of a sweep: name another file, or leave --journal out")
    if rows[0].get("schema_version") not in _READ:
        raise JournalError(
            f"journal {path} has schema version {rows[0].get('schema_version')!r}, this gemmill writes {SCHEMA_VERSION}: "
            "begin another with --journal, or delete it"
        )
    if not isinstance(rows[0].get("setup"), dict):
        raise JournalError(f"journal {path} does not say what was measured on what: begin another with --journal")
    told = (rows[0].get("command"), rows[0].get("commit"))
    record = Record(setup=rows[0]["setup"], begun_by=tuple(x if isinstance(x, str) else "" for x in told))
    for row in rows[1:]:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            _note(record, row)
    return record


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _note(record: Record, row: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError, ValueError or AttributeError, with nothing noted, where a field is missing or no such."""
    workload = workload_from_json(row["problem"])
    if row["kind"] == "fault":
        name, finding = _text(row["candidate"]), _finding(row)
        record.faults.setdefault(workload, {})[name] = finding
    elif row["kind"] == "outcome":
        entry = _entry(workload, row)
        record.entries[workload, entry.repeat, entry.wave] = entry


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _times(values: Any) -> tuple[float, ...]:
    if not all(type(us) in (int, float) and 0 < us < math.inf for us in values):
        raise ValueError(f"{values!r} are no times")
    return tuple(values)


def _finding(row: Mapping[str, Any]) -> Finding:
    return Finding(fault=Fault(row["fault"]), detail=_text(row["detail"]))


def _entry(workload: Workload, row: Mapping[str, Any]) -> Entry:
    outcome = Outcome(
        workload=workload,
        rounds_us={name: _times(us) for timed in row["rounds_us"].values() for name, us in timed.items()},
        findings={name: _finding(found) for name, found in row["faults"].items()},
        builds={name: build for build, timed in row["rounds_us"].items() for name in timed},
        device=dict(row["device"]),
        state=dict(row["state"]),
        checking_seconds=float(row["checking_seconds"]),
        seconds=float(row["seconds"]),
        error=_text_or_none(row["error"]),
    )
    return Entry(
        outcome=outcome,
        repeat=int(row["repeat"]),
        wave=int(row["wave"]),
        present=_text_or_none(row["present"]),
        date=_text(row["date"]),
    )


def _by_build(outcome: Outcome) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for name, us in outcome.rounds_us.items():
        found.setdefault(outcome.builds[name], {})[name] = [round(t, 3) for t in us]
    return found


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
            self._file.close()
            raise JournalError(
                f"journal {path} is being written by another sweep: name another with --journal"
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
        """False where a kill left nothing, or a part of the first line."""
        self._file.seek(0)
        line = self._file.readline()
        return bool(line) and (line.endswith(b"\n") or not (line.startswith(_FIRST) or _FIRST.startswith(line)))

    def fault(self, workload: Workload, name: str, finding: Finding) -> None:
        """A candidate's fault."""
        self.record.faults.setdefault(workload, {})[name] = finding
        told = {"kind": "fault", "problem": workload_to_json(workload), "candidate": name}
        self._write(told | asdict(finding) | {"date": now()})

    def outcome(self, entry: Entry) -> None:
        """A workload's outcome."""
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
