"""Runs of compute-sanitizer for sanitized.py: where the program lies, how it is started, and the verdict on each call in its output."""

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO

from gemmill.build.inspect import is_of_variant

ROOT = Path(__file__).resolve().parents[1]
CALLS = Path(__file__).with_name("sanitized_calls.py")
MARK = "@@sanitized "
PREFIX = "========"
"""Of its lines, eight or nine of them."""
PORT, PORTS = 49152, 10
"""The first port of a compute-sanitizer, and how many it takes: those that run at once have their own."""
ERRORS = 9
"""Exit code of compute-sanitizer where it reports something."""
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FILTER = "kernel_substring=gemmill"
START_SECONDS = 300.0
MOST_KEPT = 20
"""Reports of one call whose lines are kept; a wrong kernel has one for each thread."""
ENVIRONMENT = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is an allocation of its own, with an end and unwritten at first
    "GEMMILL_ENDLESS_WAITS": "1",  # a checked kernel takes minutes where its waits end after seconds
    "PYTHONUNBUFFERED": "1",
}
_NO_REPORT = ("COMPUTE-SANITIZER", "Target application returned", "Error: Target application", "Error: process didn't")
_SUMMARY = re.compile(r"\w* ?SUMMARY:")


class Trouble(Exception):  # noqa: N818 - it is no error of the program
    """Nothing can be checked; the text is one sentence."""


class Outcome(StrEnum):
    """The outcome of a call under a tool."""

    PASSED = "passed"
    REPORTED = "reported"
    """The tool has something against the kernel."""
    REFUSED = "refused"
    """The op raised an error."""
    DIED = "died"
    """The process ended in the call."""
    HUNG = "hung"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a call."""

    name: str
    """Of its variant."""
    call: str
    outcome: Outcome
    text: str
    """The first report or error; empty where it passed."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long and how much."""

    end: float
    """By time.monotonic(): no call begins after it."""
    call_seconds: float
    batch: int
    """Calls of one process, whose start takes half a minute."""
    jobs: int
    """Processes at a time."""
    call_bytes: int
    """The most that a call's tensors have, where there is a choice."""


@dataclass(frozen=True, kw_only=True)
class Sanitizer:
    """A program compute-sanitizer."""

    program: Path
    version: str
    help: str
    """Which options it has: they differ among releases."""

    def command(self, tool: str, spec: Path, place: int, jobs: int) -> list[str]:
        """The command that checks the calls of a file, as process `place` of `jobs`. It prints mangled names, by which
        kernels are known."""
        given = ["--tool", tool, "--error-exitcode", str(ERRORS), "--print-limit", "0", "--launch-timeout", "0"]
        given += ["--target-processes", "application-only", "--demangle", "no", "--show-backtrace", "device"]
        if tool == "memcheck":
            # torch asks the driver for functions that old drivers lack; the op raises a launch's error.
            given += ["--report-api-errors", "no"]
            given += ["--check-tensor-ops", "yes"] if "--check-tensor-ops" in self.help else []
        if tool == "racecheck" and "--racecheck-num-workers" in self.help:
            given += ["--racecheck-num-workers", str(max(1, len(os.sched_getaffinity(0)) // jobs))]
        if jobs > 1 and "--port" in self.help:
            given += ["--port", str(PORT + PORTS * place)]
        # An old initcheck does not see writes of kernels outside the filter, and calls their output unwritten.
        if tool != "initcheck" or "--initcheck-track-filtered-global-memory" in self.help:
            given += ["--kernel-name", FILTER]
        return [str(self.program), *given, sys.executable, str(CALLS), str(spec)]


def find_sanitizer(given: Path | None) -> Sanitizer:
    """The program that is given, or that of PATH, the toolkit or PyPI's package. Raises Trouble."""
    program = next(_programs(given), None)
    if program is None:
        raise Trouble(
            f"compute-sanitizer is not {f'in {given}' if given else 'on PATH, in a CUDA toolkit or beside torch'}: install "
            "one with `pip install --target FOLDER nvidia-cuda-sanitizer-api`, and name it with --sanitizer FOLDER"
        )
    try:
        told = [subprocess.run([program, x], capture_output=True, text=True).stdout for x in ("--version", "--help")]
    except OSError as error:
        raise Trouble(
            f"{program} cannot be started ({error.strerror}): name another one with --sanitizer PATH"
        ) from None
    version = re.search(r"Version (\S+)", told[0])
    return Sanitizer(program=program, version=version[1] if version else "unknown", help=told[1])


def _programs(given: Path | None) -> Iterator[Path]:
    name = "compute-sanitizer"
    if given is not None:
        yield from [given] if given.is_file() else sorted(x for x in given.rglob(name) if x.is_file())
        return
    if found := shutil.which(name):
        yield Path(found)
    homes = [os.environ.get("GEMMILL_CUDA_HOME"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [Path(home) / "bin" for home in homes if home]
    folders += [folder for root in sys.path for folder in sorted(Path(root).glob("nvidia/*/bin"))]
    yield from (folder / name for folder in folders if (folder / name).is_file())


def prove(sanitizer: Sanitizer, tool: str, limits: Limits) -> None:
    """Raise Trouble unless the tool reports a deliberately wrong kernel: else a pass would mean nothing."""
    transcript = _run(sanitizer, {"planted": True, "tool": tool}, (), tool, limits, 0)
    if not transcript.planted or transcript.status != ERRORS:
        raise Trouble(
            f"{tool} of {sanitizer.program} ended with {transcript.status} and does not report a kernel that is wrong on "
            f"purpose: it cannot check kernels here; its last lines: {transcript.last_lines()}"
        )


def check(
    sanitizer: Sanitizer, tool: str, names: Sequence[str], limits: Limits, build: Path, device: str = "cuda"
) -> Iterator[Verdict]:
    """Check a call of each variant, while time is left, in several processes at once. Another process makes the calls that
    a process had left when it ended.

    Raises Trouble where none can be made, or where the tool has something against no call: behind the verdicts of the others.
    """
    waiting, troubles = deque(names), []
    spec = {"planted": False, "build": str(build), "device": device, "bytes": limits.call_bytes}
    places, running = set(range(limits.jobs)), {}
    with ThreadPoolExecutor(limits.jobs) as pool:
        while running or (waiting and not troubles and time.monotonic() < limits.end):
            while waiting and places and not troubles and time.monotonic() < limits.end:
                batch, place = [waiting.popleft() for _ in range(min(limits.batch, len(waiting)))], places.pop()
                future = pool.submit(_run, sanitizer, spec | {"names": batch}, batch, tool, limits, place)
                running[future] = place
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                places.add(running.pop(future))
                transcript = future.result()
                waiting.extendleft(reversed(transcript.names[len(transcript.calls) :]))
                try:
                    yield from transcript.judged(tool, limits)
                except Trouble as trouble:
                    troubles.append(trouble)
    if troubles:
        raise troubles[0]


@dataclass(kw_only=True)
class Transcript:
    """The output of a process and of compute-sanitizer, line by line."""

    names: Sequence[str]
    """Of the variants whose calls were asked for."""
    device: str = ""
    status: int | None = None
    is_hung: bool = False
    planted: bool = False
    calls: dict[str, str] = field(default_factory=dict)
    """In words, of variants whose call began."""
    errors: dict[str, str] = field(default_factory=dict)
    """Of calls that ended: the error, or nothing."""
    reports: list[tuple[str, list[str]]] = field(default_factory=list)
    """Each with the variant whose call it came in, if it came in one."""
    _place: str = ""
    _is_open: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    _last: list[str] = field(default_factory=list)

    def read(self, line: str) -> bool:
        """Take a line; returns whether it tells of a beginning or an end."""
        before, mark, event = line.partition(MARK)
        if mark:
            self._take(json.loads(event))
            return True
        if before.startswith(PREFIX):
            self._take_report(before.lstrip("=").rstrip())
        if before.strip(" =\n"):
            self._last = [*self._last[-3:], before.strip()]
        return False

    def _take(self, event: dict[str, str]) -> None:
        self._is_open = False
        self.device = event.get("device", self.device)
        if event["event"] == "begin":
            self._place = event["name"]
            self.calls[self._place] = event["call"]
        elif event["event"] == "end":
            self.errors[event["name"]] = event["error"]

    def _take_report(self, text: str) -> None:
        """A report has a first line behind one blank, then lines further in; the next one or an empty line ends it."""
        if not text.strip():
            self._is_open = False
        elif text.startswith("  "):
            if self._is_open:
                self.reports[-1][1].append(text.strip())
        else:
            said = text.strip()
            self._is_open = not (said.startswith(_NO_REPORT) or _SUMMARY.match(said)) and self._has_room()
            if self._is_open:
                self.reports.append((self._place, [said]))
        self.planted = self.planted or "gemmill_planted" in text

    def _has_room(self) -> bool:
        self._counts[self._place] = self._counts.get(self._place, 0) + 1
        return self._counts[self._place] <= MOST_KEPT

    def last_lines(self) -> str:
        """The last lines, for a sentence."""
        return " / ".join(self._last) or "it wrote nothing"

    def judged(self, tool: str, limits: Limits) -> Iterator[Verdict]:
        """The verdicts on all calls that began. Raises Trouble where a report is no call's, or none began in time."""
        if not self.calls and time.monotonic() < limits.end:
            raise Trouble(f"{tool}: no call began, and the process ended with {self.status}: {self.last_lines()}")
        told: dict[str, str] = {}
        for place, lines in self.reports:
            told.setdefault(self._owner(place, lines), "; ".join(lines))
        if "" in told or (self.status == ERRORS and not told):
            raise Trouble(f"compute-sanitizer reports what is of no call: {told.get('', self.last_lines())}")
        for name, call in self.calls.items():
            outcome, text = self._judged(name, told.get(name))
            yield Verdict(name=name, call=call, outcome=outcome, text=text, device=self.device)

    def _owner(self, place: str, lines: list[str]) -> str:
        """The variant whose kernel is named, else the one whose call was made last: reports may come late."""
        words = {word for line in lines for word in re.findall(r"\w*gemmill\w*", line)}
        named = (name for name in self.calls if any(is_of_variant(word, name) for word in words))
        return next(named, place)

    def _judged(self, name: str, report: str | None) -> tuple[Outcome, str]:
        if report is not None:
            return Outcome.REPORTED, report
        if name not in self.errors:
            if self.is_hung:
                return Outcome.HUNG, "no end in time"
            return Outcome.DIED, f"the process ended with {self.status}: {self.last_lines()}"
        return (Outcome.REFUSED if self.errors[name] else Outcome.PASSED), self.errors[name]


def _run(
    sanitizer: Sanitizer, spec: dict[str, object], names: Sequence[str], tool: str, limits: Limits, place: int
) -> Transcript:
    """Start a process under a tool, at a place of those that run at once, and read to its end. One that hangs in a call is
    killed."""
    transcript = Transcript(names=names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.json"
        path.write_text(json.dumps(spec | {"tool": tool, "end": limits.end}), encoding="utf-8")
        process = subprocess.Popen(
            sanitizer.command(tool, path, place, limits.jobs),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
            start_new_session=True,
        )
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
        try:
            transcript.is_hung = not _read_all(transcript, lines, limits)
        finally:
            if transcript.is_hung or process.poll() is None:
                _end(process, at_once=transcript.is_hung)
        transcript.status = process.wait()
    return transcript


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "generator"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | ENVIRONMENT | {"PYTHONPATH": path}


def _pass_on(stream: IO[str], lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _read_all(transcript: Transcript, lines: "queue.Queue[str | None]", limits: Limits) -> bool:
    """Read until the end; False where a call takes too long. Reports do not count as progress."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            line = lines.get(timeout=max(end - time.monotonic(), 0.0))
        except queue.Empty:
            return False
        if line is None:
            return True
        if transcript.read(line):
            end = time.monotonic() + limits.call_seconds
        elif time.monotonic() > end:
            return False


def _end(process: "subprocess.Popen[str]", *, at_once: bool) -> None:
    """Wait for a process whose output has ended, or kill it with all that it has started."""
    if not at_once:
        try:
            process.wait(timeout=START_SECONDS)
            return
        except subprocess.TimeoutExpired:
            pass
    os.killpg(process.pid, signal.SIGKILL)
