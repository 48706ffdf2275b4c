"""compute-sanitizer over a small call of every kernel body of a build: in slices, and each machine code once.

    python tools/sanitized.py --seconds 540                        # on a GPU: all four tools, so far as time goes
    python tools/sanitized.py --tool racecheck --only 'sm90a_fused*' --json
    python tools/sanitized.py --list                               # without a GPU: bodies that passed, and those that wait

A body is a template with its holes' values, numbers above 1 and kinds of 16-bit floats left out. Of each body the
variant of least machine code makes one call. tests/sanitized.json lists bodies that passed, by the digest of their machine
code: a later build runs only changed ones. Bodies that a tool cannot check stand in tools/sanitized.toml, with the
reason. Exits with 0 where all passed, 1 where a tool found something, 2 where nothing can be checked, 3 where bodies wait.
"""

import argparse
import fnmatch
import os
import re
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from json import dumps, loads
from pathlib import Path

from gemmill import settings
from gemmill.family import Config
from gemmill.manifest import KernelEntry, Manifest, ManifestError, read_manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.builds import MANIFEST, newest, resolve
from gemmill.writing import write_whole

ROOT = Path(__file__).resolve().parents[1]
for _folder in ("tools", "benchmarks"):
    sys.path.insert(0, str(ROOT / _folder))

from sanitizer_runs import TOOLS, Limits, Outcome, Sanitizer, Trouble, Verdict, check, find_sanitizer, prove  # noqa: E402

from harness.devices import commit_of  # noqa: E402

RECORD = ROOT / "tests" / "sanitized.json"
EXCEPTIONS = Path(__file__).with_suffix(".toml")
FOUND, CANNOT, WAITS = 1, 2, 3
"""Exit codes."""
_NUMBER = re.compile(r"\b0x[0-9a-f]+\b|(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?f?\b")
_HALF = re.compile(r"cutlass::(?:bfloat16_t|half_t)|__nv_bfloat16|__half\b|\b(?:BF16|F16|Bf16)\b")
_NUMBERS = re.compile(r"#(?:, #)+")


@dataclass(frozen=True, kw_only=True)
class Body:
    """Kernels of one structure."""

    template: str
    entries: tuple[KernelEntry, ...]
    """Its variants; the first makes the call."""

    @property
    def name(self) -> str:
        """Of the variant that makes the call."""
        return self.entries[0].name


@dataclass(frozen=True, kw_only=True)
class Unchecked:
    """Variants that a tool cannot check."""

    variants: str
    """A pattern of names."""
    tool: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A machine code of the record."""

    digest: str
    name: str
    """Of the variant that made the call."""
    call: str
    passed: dict[str, str]
    """By tool: date, commit, device and version of compute-sanitizer."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a body stands with a tool."""

    template: str
    name: str
    tool: str
    state: str
    """An outcome, or excepted, or waits."""
    text: str


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    try:
        folder, manifest = build_of(options.build)
        bodies = [body for body in bodies_of(manifest) if is_asked(body, options.only)]
        exceptions = read_exceptions(options.exceptions)
        if not bodies:
            raise Trouble(f"--only {' '.join(options.only)} names no variant or template of build {manifest.build_id}")
        rows = read_record(options.record)
        found: dict[tuple[str, str], Verdict] = {}
        if not options.list:
            for tool, verdict in run(options, folder, manifest, bodies, exceptions, rows):
                found[verdict.name, tool] = verdict
    except (Trouble, ManifestError) as trouble:
        print(f"sanitized: {trouble}", file=sys.stderr)
        return CANNOT
    states = [state_of(body, tool, rows, exceptions, found) for tool in options.tool for body in bodies]
    print(dumps([asdict(state) for state in states], indent=1) if options.json else summary(states, manifest))
    told = {state.state for state in states}
    return FOUND if told & (set(Outcome) - {Outcome.PASSED}) else WAITS if "waits" in told else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="id or path; by default GEMMILL_BUILD, else the newest")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="repeatable; by default all")
    parser.add_argument("--only", action="append", default=[], help="variants or templates, by pattern; repeatable")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no call after so many")
    parser.add_argument("--call-seconds", type=float, default=180.0, help="a call that takes longer hangs")
    parser.add_argument("--call-bytes", type=int, default=1 << 22, help="the most that a call's tensors have")
    parser.add_argument(
        "--batch", type=int, default=20, help="calls of one process; what passed is recorded at its end"
    )
    parser.add_argument("--jobs", type=int, default=most_jobs(), help="processes at a time")
    parser.add_argument("--sanitizer", type=Path, help="compute-sanitizer, or a folder that has it")
    parser.add_argument("--record", type=Path, default=RECORD, help="the file of what passed, which is written")
    parser.add_argument("--exceptions", type=Path, default=EXCEPTIONS, help="the file of what cannot be checked")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--again", action="store_true", help="check what has passed, too")
    parser.add_argument("--list", action="store_true", help="only list bodies that passed and those that wait")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    options = parser.parse_args(arguments)
    options.tool = [tool for tool in TOOLS if tool in (options.tool or TOOLS)]
    return options


def most_jobs() -> int:
    """Three of four cores, at most 12: each process has a CUDA context of its own."""
    return max(1, min(12, len(os.sched_getaffinity(0)) * 3 // 4))


def build_of(named: str | None) -> tuple[Path, Manifest]:
    """A build's folder and manifest: the named one, GEMMILL_BUILD's, or the newest. Raises ManifestError."""
    if (build := named or settings.build()) is None:
        return newest(None)
    folder = resolve(build)
    return folder, read_manifest(folder / MANIFEST)


def bodies_of(manifest: Manifest) -> list[Body]:
    """The bodies of a build's kernels. Raises Trouble for a manifest that does not tell machine code apart."""
    alike: dict[tuple[str, str], list[KernelEntry]] = defaultdict(list)
    for entry in manifest.entries:
        if not entry.sass_digest:
            raise Trouble(f"build {manifest.build_id} has no digest of {entry.name}'s machine code: build it again")
        alike[structure_of(entry.config)].append(entry)
    # Launch settings cost no machine code: the longest name has most of them.
    order = lambda entry: (entry.code_bytes, -len(entry.name), entry.name)  # noqa: E731
    return [Body(template=key[0], entries=tuple(sorted(entries, key=order))) for key, entries in sorted(alike.items())]


def structure_of(config: Config) -> tuple[str, str]:
    """A template, and the values of its holes without sizes: 0 and 1 stay, since they switch parts of a kernel on and off.

    The file of a kernel of the CuTe DSL is its name alone, so its family and tag stand for the template, and its fields for
    the holes.
    """
    kernels = REGISTRY.kernels_of(config)
    if kernels.dsl is None:
        spelled = kernels.spell(config.compiled)
        template, values = spelled.template, dict(spelled.values)
    else:
        told = kernels.grammar.filters(config.compiled)
        template = f"{REGISTRY.family_of(config).name}/{kernels.tag}"
        values = {name: value.name if isinstance(value, Enum) else value for name, value in told.items()}
    numbers = _NUMBER.sub(lambda match: match[0] if match[0] in ("0", "1") else "#", repr(values))
    return template, _NUMBERS.sub("#", _HALF.sub("half", numbers))


def is_asked(body: Body, only: Sequence[str]) -> bool:
    """Whether patterns name the body's template, or a variant of it."""
    names = [body.template, *(entry.name for entry in body.entries)]
    return not only or any(fnmatch.fnmatch(name, pattern) for name in names for pattern in only)


def read_exceptions(path: Path) -> list[Unchecked]:
    """The exceptions from tools/sanitized.toml. Raises Trouble for a file with other fields."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("unchecked", [])
        found = [Unchecked(**row) for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise Trouble(f"{path} cannot be read ({error}): each [[unchecked]] has variants, tool and reason") from None
    for row in found:
        if row.tool not in TOOLS or not row.reason:
            raise Trouble(
                f"{path}: {row.variants} has tool {row.tool!r} and reason {row.reason!r}: a tool is one of {', '.join(TOOLS)}, and a reason is a sentence"
            )
    return found


def excepted(body: Body, tool: str, exceptions: Iterable[Unchecked]) -> str:
    """Why a tool cannot check a body; empty where it can."""
    fits = (x.reason for x in exceptions if x.tool == tool and fnmatch.fnmatch(body.name, x.variants))
    return next(fits, "")


def read_record(path: Path) -> dict[str, Row]:
    """Bodies that passed, by digest."""
    if not path.exists():
        return {}
    return {row["digest"]: Row(**row) for row in loads(path.read_text(encoding="utf-8"))["passed"]}


def write_record(path: Path, rows: dict[str, Row], manifest: Manifest) -> None:
    """Write bodies that passed into the file, a line each. Machine code that the default selection no longer has is left out."""
    if manifest.selection == "default":
        there = {entry.sass_digest for entry in manifest.entries}
        old = [x for x, row in rows.items() if row.name.startswith(f"{manifest.arch}_") and x not in there]
        for digest in old:
            del rows[digest]
    lines = [
        dumps(asdict(row), sort_keys=True) for row in sorted(rows.values(), key=lambda row: (row.name, row.digest))
    ]
    text = '{"program": "tools/sanitized.py", "passed": [\n' + ",\n".join(lines) + "\n]}\n"
    write_whole(path, text)


def passed(body: Body, tool: str, rows: dict[str, Row]) -> str:
    """When and where a machine code of the body passed a tool; empty where none has."""
    told = (rows[entry.sass_digest].passed.get(tool, "") for entry in body.entries if entry.sass_digest in rows)
    return next(filter(None, told), "")


def run(
    options: argparse.Namespace,
    folder: Path,
    manifest: Manifest,
    bodies: Sequence[Body],
    exceptions: Sequence[Unchecked],
    rows: dict[str, Row],
) -> Iterator[tuple[str, Verdict]]:
    """Check waiting bodies, tool by tool. The record has each that passes at once."""
    sanitizer = find_sanitizer(options.sanitizer)
    limits = Limits(
        end=time.monotonic() + options.seconds,
        call_seconds=options.call_seconds,
        batch=options.batch,
        jobs=options.jobs,
        call_bytes=options.call_bytes,
    )
    for tool in options.tool:
        waiting = [
            body
            for body in bodies
            if not excepted(body, tool, exceptions) and (options.again or not passed(body, tool, rows))
        ]
        if not waiting or time.monotonic() > limits.end:
            continue
        prove(sanitizer, tool, limits)
        digests = {body.name: body.entries[0].sass_digest for body in waiting}
        for verdict in check(sanitizer, tool, list(digests), limits, folder):
            if verdict.outcome is Outcome.PASSED:
                note(rows, digests[verdict.name], verdict, tool, how(options, sanitizer, verdict))
            elif digests[verdict.name] in rows:
                rows[digests[verdict.name]].passed.pop(tool, None)
            write_record(options.record, rows, manifest)
            print(f"{tool}: {verdict.name}: {verdict.outcome} {verdict.text}".rstrip(), file=sys.stderr, flush=True)
            yield tool, verdict


def how(options: argparse.Namespace, sanitizer: Sanitizer, verdict: Verdict) -> str:
    """Date, commit, device and version, for the record."""
    commit = (options.commit or commit_of(ROOT))[:9]
    date = datetime.now(UTC).date().isoformat()
    return f"{date} {commit} {verdict.device}, compute-sanitizer {sanitizer.version}"


def note(rows: dict[str, Row], digest: str, verdict: Verdict, tool: str, told: str) -> None:
    """Remember that a machine code passed a tool."""
    before = rows[digest].passed if digest in rows else {}
    rows[digest] = Row(digest=digest, name=verdict.name, call=verdict.call, passed=before | {tool: told})


def state_of(
    body: Body,
    tool: str,
    rows: dict[str, Row],
    exceptions: Sequence[Unchecked],
    found: dict[tuple[str, str], Verdict],
) -> State:
    """Where a body stands after a run."""
    state, text = "waits", ""
    if reason := excepted(body, tool, exceptions):
        state, text = "excepted", reason
    elif verdict := found.get((body.name, tool)):
        state, text = verdict.outcome, verdict.text
    elif told := passed(body, tool, rows):
        state, text = Outcome.PASSED, told
    return State(template=body.template, name=body.name, tool=tool, state=state, text=text)


def summary(states: Sequence[State], manifest: Manifest) -> str:
    """A table of tools, and the bodies that did not pass."""
    kinds = [*Outcome, "excepted", "waits"]
    lines = [f"build {manifest.build_id} for {manifest.arch}", f"{'':10}" + "".join(f"{kind:>10}" for kind in kinds)]
    for tool in dict.fromkeys(state.tool for state in states):
        counts = [sum(x.tool == tool and x.state == kind for x in states) for kind in kinds]
        lines.append(f"{tool:10}" + "".join(f"{count:10}" for count in counts))
    quiet = {Outcome.PASSED, "waits"}
    lines += [f"{x.tool}: {x.name}: {x.state}: {x.text}" for x in states if x.state not in quiet]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
