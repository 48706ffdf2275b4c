"""Which deliberate mistakes in sm120f's kernels does `gemmill verify` find? Compiled anywhere, tried on a Hopper GPU.

    python tools/blackwell_breakages.py make broken            # compiles for half an hour, needs no GPU
    gemmill build --arch sm120f --emulate                      # has each variant unbroken
    python tools/blackwell_breakages.py try broken --unbroken BUILD --json found.json      # on an sm90a GPU

Each line of blackwell_breakages.toml changes one line of a kernel, or of CUTLASS's pipeline, as a slip would; the emulation of
sm120f's instructions is as it is. `make` compiles the one variant that a breakage names, emulated for sm90a, in a copy of the
tree. `try` verifies each in a process of its own, and before it the variant unbroken. A kernel that does not end is found, and
said to be.
Exits with 1 where a breakage survived or could not be tried, 2 where nothing can be made or tried.
"""

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from breakages import Outcome, Trouble, copy_tree

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
OF_CUTLASS = "cutlass/"
UNBROKEN = "unbroken"
MADE = "made.json"
_TOLD, _CANNOT = 300, {2, 3}
"""Characters of an error; exit statuses of gemmill for a wrong command, and for something that is missing."""


@dataclass(frozen=True, kw_only=True)
class Breakage:
    """One line of a kernel, changed."""

    name: str
    file: str
    """From the root of the tree, or a header of CUTLASS by the name that it is included by."""
    old: str
    """Occurs once in the file."""
    new: str
    variant: str
    """The kernel that is compiled and verified."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What became of a breakage."""

    name: str
    variant: str
    outcome: Outcome
    by: str
    """The first case that failed with its error, or what ended the process."""
    cases: int
    wrong: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (("make", "compile the broken kernels"), ("try", "verify them on this GPU")):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("folder", type=Path, help="of the broken builds")
        one.add_argument("--only", action="append", metavar="NAME", help="of the list, by name or pattern; repeatable")
    verbs.choices["make"].add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "blackwell-breakages")
    verbs.choices["try"].add_argument("--unbroken", required=True, metavar="BUILD", help="an emulated build of all")
    verbs.choices["try"].add_argument("--json", type=Path, required=True, help="where the results are written")
    verbs.choices["try"].add_argument("--timeout", type=float, default=120.0, help="seconds of a kernel that hangs")
    options = parser.parse_args(arguments)
    try:
        chosen = [b for b in read_list(LIST) if any(fnmatch.fnmatch(b.name, only) for only in options.only or ["*"])]
        if not chosen:
            raise Trouble(f"--only {' '.join(options.only)} names no breakage of {LIST.name}")
        if options.verb == "make":
            return make_all(chosen, options.folder, options.work)
        return try_all(chosen, options.folder, options.unbroken, options.json, options.timeout)
    except Trouble as trouble:
        print(f"blackwell_breakages: {trouble}", file=sys.stderr)
        return 2


def read_list(path: Path) -> list[Breakage]:
    """The breakages of a list."""
    return [Breakage(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["breakage"]]


def make_all(breakages: Sequence[Breakage], folder: Path, work: Path) -> int:
    """Compile each breakage into a folder of its name. What is there already is kept."""
    from gemmill.build.toolchain import find_toolchain

    tree, cutlass = work / "tree", work / "cutlass"
    copy_tree(ROOT, tree)
    shutil.rmtree(cutlass, ignore_errors=True)
    shutil.copytree(find_toolchain().cutlass_include, cutlass / "include")
    folder.mkdir(parents=True, exist_ok=True)
    made = read_made(folder)
    for breakage in breakages:
        if made.get(breakage.name) == asdict(breakage) and (folder / breakage.name).is_dir():
            continue
        start = time.monotonic()
        with broken(breakage, tree, cutlass):
            built = build_one(breakage, tree, cutlass, work / "home")
        shutil.rmtree(folder / breakage.name, ignore_errors=True)
        shutil.move(built, folder / breakage.name)
        made[breakage.name] = asdict(breakage)
        (folder / MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        print(f"{breakage.name}: compiled in {time.monotonic() - start:.0f} s", flush=True)
    return 0


def read_made(folder: Path) -> dict[str, dict[str, str]]:
    """The breakages in a folder, by name, as they were when they were compiled."""
    listed = folder / MADE
    return json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else {}


@contextmanager
def broken(breakage: Breakage, tree: Path, cutlass: Path) -> Iterator[None]:
    """Change the line for a while. Raises Trouble where it is not there once."""
    target = (cutlass / "include" if breakage.file.startswith(OF_CUTLASS) else tree) / breakage.file
    whole = target.read_text(encoding="utf-8")
    if whole.count(breakage.old) != 1:
        raise Trouble(
            f"{breakage.name}: {breakage.old!r} is {whole.count(breakage.old)} times in {breakage.file}, expected once: "
            f"correct {LIST.name}"
        )
    target.write_text(whole.replace(breakage.old, breakage.new), encoding="utf-8")
    try:
        yield
    finally:
        target.write_text(whole, encoding="utf-8")


def build_one(breakage: Breakage, tree: Path, cutlass: Path, home: Path) -> Path:
    """The folder of an emulated build of one variant. Raises Trouble where it does not compile or is no other build."""
    builds = home / "builds"
    shutil.rmtree(builds, ignore_errors=True)
    environment = os.environ | {
        "PYTHONPATH": str(tree / "generator"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GEMMILL_HOME": str(home),
        "GEMMILL_CUTLASS_HOME": str(cutlass),
    }
    named = ("--select", "default", "--filter", f"re:^{breakage.variant}$")
    command = (sys.executable, "-m", "gemmill", "build", "--arch", "sm120f", "--emulate", *named, "--jobs", "1")
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Trouble(f"{breakage.name} does not compile: {done.stderr[-2000:]}")
    (built,) = builds.iterdir()
    return built


def try_all(breakages: Sequence[Breakage], folder: Path, unbroken: str, results: Path, timeout_s: float) -> int:
    """Verify each unbroken variant, then its breakages. Writes the results after each."""
    made = read_made(folder)
    missing = [breakage.name for breakage in breakages if made.get(breakage.name) != asdict(breakage)]
    if missing:
        raise Trouble(f"{folder} lacks {', '.join(missing)} as {LIST.name} has them: run `make` again")
    tried: list[Tried] = []
    for variant in dict.fromkeys(breakage.variant for breakage in breakages):
        control = verified(UNBROKEN, variant, unbroken, timeout_s)
        tried.append(control)
        for breakage in breakages:
            if breakage.variant == variant:
                tried.append(
                    verified(breakage.name, variant, str((folder / breakage.name).resolve()), timeout_s)
                    if control.outcome is Outcome.SURVIVED
                    else Tried(
                        name=breakage.name,
                        variant=variant,
                        outcome=Outcome.UNTRIED,
                        by="the unbroken variant fails",
                        cases=0,
                        wrong=0,
                        seconds=0.0,
                    )
                )
        results.write_text(report(tried, made), encoding="utf-8")
    of_breakages = [one for one in tried if one.name != UNBROKEN]
    found = sum(one.outcome is Outcome.FOUND for one in of_breakages)
    print(f"{found} of {len(of_breakages)} were found")
    return int(found < len(of_breakages))


def report(tried: Sequence[Tried], made: dict[str, dict[str, str]]) -> str:
    """The results as JSON, each with the line that was changed."""
    rows: list[dict[str, Any]] = [made.get(one.name, {}) | asdict(one) for one in tried]
    return json.dumps(rows, indent=1) + "\n"


def verified(name: str, variant: str, build: str, timeout_s: float) -> Tried:
    """Run `gemmill verify` of a variant of a build in a process. Raises Trouble where it cannot run here."""
    start = time.monotonic()
    named = ("--build", build, "--filter", f"re:^{variant}$", "--json")
    command = (sys.executable, "-m", "gemmill", "verify", *named)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        outcome, by, cases, wrong = Outcome.FOUND, f"no end after {timeout_s:g} s", 0, 0
    else:
        if done.returncode in _CANNOT:
            raise Trouble(f"{name}: {done.stderr.strip()[-2000:]}")
        outcome, by, cases, wrong = judged(done)
    seconds = round(time.monotonic() - start, 1)
    one = Tried(name=name, variant=variant, outcome=outcome, by=by, cases=cases, wrong=wrong, seconds=seconds)
    print(f"{name} ({variant}): {outcome}, {wrong} of {cases} cases wrong, {seconds} s. {by}", flush=True)
    return one


def judged(done: "subprocess.CompletedProcess[str]") -> tuple[Outcome, str, int, int]:
    """What a process that ended says: the outcome, by what, how many cases it ran, and how many were wrong."""
    try:
        verdicts = json.loads(done.stdout)["verdicts"]
    except ValueError:
        last = (done.stderr.strip() or "nothing was printed").splitlines()[-1]
        return Outcome.FOUND, f"the process ended with {done.returncode}: {last[:_TOLD]}", 0, 0
    failures = [failure for verdict in verdicts for failure in verdict["failures"]]
    cases = sum(verdict["cases"] for verdict in verdicts)
    if not failures:
        return Outcome.SURVIVED, "", cases, 0
    return Outcome.FOUND, failures[0][:_TOLD], cases, len(failures)


if __name__ == "__main__":
    sys.exit(main())
