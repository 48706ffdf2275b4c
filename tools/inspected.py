"""Compile kernels one by one, and record each outcome: for architectures of which no GPU is at hand.

    python tools/inspected.py --arch sm100a --filter '*_blockscaled_*' --out benchmarks/results/inspected-sm100a.json
    python tools/inspected.py --arch sm100a --filter '*_blockscaled_*' --out X --jobs 16 --limit-s 300   # the kernels that X lacks, while time is left

No extension is linked and no cache written, so that a minute's kernel is all that a minute takes. A kernel whose source, headers or
compiler differ from those of the file is compiled anew. The file has registers, spilled bytes and instructions of interest of each,
and is whole after every kernel. It names the commit whose sources all of its kernels are, and the date of that check. Exits with 1
where one spills, or does not compile, with 2 without a compiler.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps, loads
from pathlib import Path

from gemmill.build.errors import BuildError, first_error
from gemmill.build.files import digest
from gemmill.build.inspect import read_cubin
from gemmill.build.options import BuildOptions
from gemmill.build.sources import Source, SourceKind, variant_source
from gemmill.build.workshop import Workshop, open_workshop
from gemmill.space.filters import apply
from gemmill.space.selections import select
from gemmill.vocab import Arch
from gemmill.writing import write_whole

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from harness.devices import commit_of  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that is to be compiled."""

    source: Source
    digest: str
    """Of its source, of headers of the folders that it includes from, of the compiler and of its flags."""


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    try:
        workshop = open_workshop(options.arch, BuildOptions())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    kernels = kernels_of(options, workshop)
    found = {} if not options.out.exists() else {row["name"]: row for row in loads(options.out.read_text())["kernels"]}
    found = {kernel.source.name: found[kernel.source.name] for kernel in kernels if is_current(kernel, found)}
    waiting = [kernel for kernel in kernels if kernel.source.name not in found]
    end = time.monotonic() + options.limit_s
    commit = options.commit or commit_of(ROOT)
    if found:
        write(options, workshop, commit, found)
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [pool.submit(row_of, kernel, workshop, end) for kernel in waiting]
        for done in as_completed(rows):
            row = done.result()
            if row is None:
                continue
            found[row["name"]] = row
            write(options, workshop, commit, found)
            print(told(row), flush=True)
    bad = [row for row in found.values() if row["error"] or row["spill_bytes"]]
    print(f"{len(found)} of {len(kernels)} kernels inspected, {len(bad)} bad")
    return 1 if bad else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=Arch, required=True)
    parser.add_argument("--select", default="default", help="a named set of variants")
    parser.add_argument("--filter", action="append", default=[], help="as of gemmill build")
    parser.add_argument("--out", type=Path, required=True, help="the file that is gone on with")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    return parser.parse_args(arguments)


def write(options: argparse.Namespace, workshop: Workshop, commit: str, found: dict[str, dict[str, object]]) -> None:
    """Put all rows into the file."""
    record = {
        "program": "tools/inspected.py",
        "date": date(),
        "commit": commit,
        "arch": str(options.arch),
        "cutlass": workshop.toolchain.cutlass_version,
        "select": options.select,
        "filter": options.filter,
        "kernels": [found[name] for name in sorted(found)],
    }
    write_whole(options.out, dumps(record, indent=1) + "\n")


def date() -> str:
    """Now, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def kernels_of(options: argparse.Namespace, workshop: Workshop) -> list[Kernel]:
    """Those of the selection that nvcc compiles, each once."""
    configs = {config.compiled for config in apply(select(options.select, options.arch), options.filter).configs}
    sources = [variant_source(config, workshop.keys) for config in configs]
    cutlass = workshop.toolchain.cutlass_version
    by_nvcc = (source for source in sources if source.kind is SourceKind.VARIANT)
    kernels = [Kernel(source=x, digest=digest(x.key, cutlass)) for x in by_nvcc]
    return sorted(kernels, key=lambda kernel: kernel.source.name)


def is_current(kernel: Kernel, found: dict[str, dict[str, object]]) -> bool:
    """Whether the file has this source's outcome."""
    row = found.get(kernel.source.name)
    return row is not None and row["digest"] == kernel.digest and not row["error"]


def row_of(kernel: Kernel, workshop: Workshop, end: float) -> dict[str, object] | None:
    """The outcome of a kernel; None where time is over."""
    if time.monotonic() > end:
        return None
    begun = time.monotonic()
    row: dict[str, object] = {
        "name": kernel.source.name,
        "digest": kernel.digest,
        "registers": 0,
        "spill_bytes": 0,
        "sass": {},
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            facts = read_cubin(compiled(kernel, workshop, Path(folder)))
        row |= {"registers": facts.registers, "spill_bytes": facts.spill_bytes, "sass": facts.sass, "error": ""}
    except subprocess.CalledProcessError as error:
        row["error"] = first_error(error.stderr)
    told_by = {"nvcc": workshop.toolchain.compiler_build, "date": date()}
    return row | told_by | {"seconds": round(time.monotonic() - begun, 1)}


def compiled(kernel: Kernel, workshop: Workshop, folder: Path) -> str:
    """SASS and resources, as cuobjdump prints them."""
    tools = workshop.toolchain
    source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    source.write_text(kernel.source.text)
    flags = workshop.flags.for_kind(SourceKind.VARIANT)
    for name, path in workshop.roots.items():
        flags = tuple(flag.replace(f"<{name}>", str(path)) for flag in flags)
    path = os.pathsep.join((*map(str, tools.programs), os.environ.get("PATH", "")))
    compile_ = [str(tools.nvcc), "-ccbin", str(tools.gxx), *flags, "-cubin", str(source), "-o", str(cubin)]
    show = [str(tools.cuobjdump), "-sass", "-res-usage", str(cubin)]
    for command in (compile_, show):
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
        )
    return done.stdout


def told(row: dict[str, object]) -> str:
    """A line about a kernel."""
    if row["error"]:
        return f"{row['name']}: {row['error']}"
    return f"{row['name']}: {row['registers']} registers, {row['spill_bytes']} bytes spilled, {row['sass']}, {row['seconds']} s"


if __name__ == "__main__":
    sys.exit(main())
