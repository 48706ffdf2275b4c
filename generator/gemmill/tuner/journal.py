"""A sweep's facts, a line each, each on the disk at once. An interrupted sweep continues from them.

The first line names the device and the workloads. A candidate's fault and a workload's outcome are lines of their own.
The reader skips a line that a kill cut off, and the sweep measures its subject again. It refuses a whole line whose
fields are not those of a journal.
"""

import contextlib
import json
import lzma
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from gemmill.tuner.checking import Finding
from gemmill.tuner.device import now
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.protocol import workload_to_json
from gemmill.tuner.record import SCHEMA_VERSION, Entry, JournalError, MeasuredBuild, Record
from gemmill.tuner.workloads import Workload
from gemmill.writing import hold

_PACKED = ".xz"
_FIRST = b'{"kind": "sweep", '
"""The beginning of the first line."""


def read_journal(path: Path) -> Record:
    """The record of a journal's whole lines. It unpacks one whose name ends in .xz. Raises JournalError."""
    from gemmill.tuner.journal_lines import record_of

    try:
        data = path.read_bytes()
        lines = (lzma.decompress(data) if path.suffix == _PACKED else data).splitlines()
    except lzma.LZMAError as error:
        raise JournalError(
            f"journal {path} cannot be unpacked ({error}): pack it again with xz, or name it without .xz"
        ) from None
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error.strerror}") from None
    return record_of(path, lines)


def _by_build(outcome: TaskOutcome) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for name, us in outcome.rounds_us.items():
        found.setdefault(outcome.builds[name], {})[name] = [round(t, 3) for t in us]
    return found


def _writer(path: Path) -> str:
    """The process that has a journal open, as far as this user may see it."""
    try:
        import psutil
    except ModuleNotFoundError:
        return ""
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
            held, why = hold(self._file), ""
        except OSError as error:
            held, why = (
                False,
                f"journal {path} cannot be locked ({error.strerror}): name one on a file system that has locks with --journal",
            )
        if not held:
            self._file.close()  # the other's alone is open
            raise JournalError(
                why or f"journal {path} is being written by another sweep{_writer(path)}: name another with --journal"
            )
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

    def build(self, folder: str, build: MeasuredBuild) -> None:
        """Note a build before its measurement, so that the journal alone suffices for a table."""
        if self.record.builds.get(folder) != build:
            self.record.builds[folder] = build
            self._write({"kind": "build", "folder": folder} | asdict(build))

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
