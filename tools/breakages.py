"""Which deliberate mistakes do the tests find? Each line of breakages.toml is tried on a copy of the tree.

    python tools/breakages.py
    python tools/breakages.py --only 'build-*' --only eps-unchecked --json

A breakage is one line of one file, changed as a slip would change it, with the tests that should notice. The copy lies in
--work (never the checkout itself); so does the journal, from which an interrupted run goes on: it tries
no breakage again on the same tree. Before the first breakage the tests must pass on the unbroken copy.
Exits with 1 where a breakage survived, 2 where the tests cannot be run.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV

import msgspec

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
CONTROL = "unbroken"
LIMIT_S = 1800
_ENDED = {0, 1, 2}
"""Exit statuses of pytest after tests: all passed, some failed, a module could not be imported."""
_CRASHES = {-number: number.name for number in (SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV)}
"""Exit statuses of a process that its own fault has ended, as one of C++ ends that of the tests."""


@dataclass(frozen=True, kw_only=True)
class Breakage:
    """One line of one file, changed."""

    name: str
    file: str
    """From the root of the tree."""
    old: str
    """Occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest: paths, or tests of them, which should fail."""


class Outcome(StrEnum):
    """The outcome of a breakage."""

    FOUND = "found"
    SURVIVED = "survived"
    UNTRIED = "untried"
    """This machine can run none of its tests."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A line of the journal."""

    key: str
    """Digest of tree and breakage."""
    name: str
    outcome: Outcome
    by: str
    """The first test that failed, or the reason why none ran to its end."""
    seconds: float


class Trouble(Exception):  # noqa: N818 - it is no error of the program
    """The tests cannot be run; the text is one sentence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="of the list, by name or pattern; repeatable")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "gemmill-breakages")
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    args = parser.parse_args()
    chosen = [b for b in read_list(LIST) if any(fnmatch.fnmatch(b.name, only) for only in args.only or ["*"])]
    if not chosen:
        parser.error(f"--only {' '.join(args.only)} names no breakage of {LIST.name}")
    results = []
    try:
        for result in try_all(ROOT, chosen, args.work):
            results.append(result)
            by = f" by {result.by}" if result.by else ""
            print(f"[{len(results)}/{len(chosen)}] {result.name}: {result.outcome}{by}", file=sys.stderr, flush=True)
    except Trouble as trouble:
        print(f"breakages: {trouble}", file=sys.stderr)
        sys.exit(2)
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print(summary(results))
    sys.exit(any(result.outcome is Outcome.SURVIVED for result in results))


def read_list(path: Path) -> list[Breakage]:
    """The breakages of a list."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["breakage"]
    return [Breakage(**row | {"tests": tuple(row["tests"])}) for row in rows]


def summary(results: Sequence[Result]) -> str:
    """How many were found, and which were not."""
    left = [f"  {result.outcome}: {result.name}" for result in results if result.outcome is not Outcome.FOUND]
    return "\n".join([f"{len(results) - len(left)} of {len(results)} were found", *left])


def try_all(root: Path, breakages: Sequence[Breakage], work: Path) -> Iterator[Result]:
    """Try each in a copy of the tree, in turn. Raises Trouble where the unbroken copy fails its own tests."""
    work.mkdir(parents=True, exist_ok=True)
    tree = work / "tree"
    digest = copy_tree(root, tree)
    journal = work / "results.jsonl"
    known = {result.key: result for result in _read_journal(journal)}
    tests = tuple(dict.fromkeys(path for breakage in breakages for path in breakage.tests))
    for breakage in (Breakage(name=CONTROL, file="", old="", new="", tests=tests), *breakages):
        key = hashlib.sha256(f"{digest} {breakage}".encode()).hexdigest()
        result = known.get(key) or _try_one(breakage, tree, key, work)
        if breakage.name == CONTROL and result.outcome is not Outcome.SURVIVED:
            raise Trouble(
                f"the tests fail on the unbroken tree ({result.by or 'none ran'}): repair that first, see {tree}"
            )
        if key not in known:
            with journal.open("a", encoding="utf-8") as lines:
                lines.write("\n" + json.dumps(asdict(result)))  # in front: the last line may have been cut off
        if breakage.name != CONTROL:
            yield result


def copy_tree(root: Path, tree: Path) -> str:
    """Put the checkout's files, whatever git does not ignore, into `tree`, and nothing else; returns their digest."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    digest = hashlib.sha256()
    for name in sorted(filter(None, names)):
        source, target = root / name, tree / name
        if not source.is_file():
            continue  # deleted, and not yet from the index
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        digest.update(f"{name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def _try_one(breakage: Breakage, tree: Path, key: str, work: Path) -> Result:
    start = time.monotonic()
    target = tree / breakage.file
    whole = target.read_text(encoding="utf-8") if breakage.file else ""
    if breakage.file and whole.count(breakage.old) != 1:
        raise Trouble(
            f"{breakage.name}: {breakage.old!r} is {whole.count(breakage.old)} times in {breakage.file}, expected once: "
            f"correct {LIST.name}"
        )
    try:
        if breakage.file:
            target.write_text(whole.replace(breakage.old, breakage.new), encoding="utf-8")
        outcome, by = _run_tests(breakage.tests, tree, work)
    finally:
        if breakage.file:
            target.write_text(whole, encoding="utf-8")
    return Result(key=key, name=breakage.name, outcome=outcome, by=by, seconds=round(time.monotonic() - start, 1))


def _run_tests(tests: Sequence[str], tree: Path, work: Path) -> tuple[Outcome, str]:
    # No bytecode: Python tells a changed file by its size and second. A home of its own: a breakage of the cache's keys
    # must not put its objects where later builds look.
    environment = os.environ | {
        "PYTHONPATH": str(tree / "generator"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GEMMILL_HOME": str(work / "home"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--show-capture=no", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Outcome.FOUND, f"no end after {LIMIT_S} s"
    if done.returncode in _CRASHES:
        return Outcome.FOUND, f"a crash, {_CRASHES[done.returncode]}"
    if done.returncode not in _ENDED:
        raise Trouble(
            f"pytest {' '.join(tests)} ended with {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}"
        )
    if done.returncode == 0:
        return (Outcome.SURVIVED if re.search(r"\b\d+ passed", done.stdout) else Outcome.UNTRIED), ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return Outcome.FOUND, failed[1] if failed else "a test"


def _read_journal(path: Path) -> Iterator[Result]:
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # the last line of an interrupted run
            yield msgspec.json.decode(line, type=Result)


if __name__ == "__main__":
    main()
