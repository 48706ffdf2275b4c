"""The toy from its declaration to a called op: `python -m toy OBJECTS HOME NAME...`.

OBJECTS has gemmill's own objects, compiled, and those of a machine that stands in for the functions of these names. Prints a
line of JSON for each step.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from examined import examine
from gemmill.build.files import file_digest
from gemmill.build.sources import TORCH_TARGET, expand, flags_for, hand_written, roots_of
from gemmill.build.toolchain import find_toolchain
from gemmill.cli import main as command
from gemmill.emit.render import emit, render
from gemmill.fuzz import child
from gemmill.fuzz.findings import FuzzSpec
from gemmill.locations import kernels_dir
from gemmill.manifest import write_manifest
from gemmill.numerics.verify import verdict
from gemmill.runtime import ops
from gemmill.runtime.library import Build
from gemmill.runtime.table_file import Source, TableRow, make_table, table_text
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.space.selections import select
from gemmill.tuner.program import stand_in_build
from gemmill.vocab import Arch
from toy.cases import of_config
from toy.config import call_of
from toy.family import FAMILY
from toy.ops import PACK

NAMESPACE = "toyed"


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def build(objects: Path, home: Path, wrapped: list[str]) -> Path:
    """A build of the toy's kernels alone, with the binding's objects of the probes. Returns its folder."""
    tools, selection = find_toolchain(), select("default")
    configs = [config for config in selection.configs if config.tag == FAMILY.name]
    symbols = sorted(map(symbol_of, configs))
    sources = [path for path in hand_written(kernels_dir()) if path.is_relative_to(FAMILY.home)]
    for name, text in {
        "variants.cpp": render("extension/variants.cpp.jinja", {"symbols": symbols, "build_id": "cccccccccccc"}),
        **{f"{symbol_of(config)}.cpp": emit(config).text for config in configs},
    }.items():
        sources.append(home / name)
        sources[-1].write_text(text)
    roots, flags = roots_of(tools, kernels_dir()), flags_for(Arch.SM90A)
    folder = home / "builds" / "cccccccccccc"
    folder.mkdir(parents=True)
    extension = folder / "gemmill_cccccccccccc.so"
    own = []
    for source in sources:
        own.append(home / f"toy_{source.stem}.o")
        compile_one = [
            tools.gxx,
            "-c",
            source,
            *expand(flags.host, roots),
            "-O0",
            f"-I{FAMILY.home / 'kernels'}",
            "-o",
            own[-1],
        ]
        subprocess.run(list(map(str, compile_one)), check=True)
    shared = [*sorted((objects / "binding").glob("*.o")), objects / "binding_machine.o"]
    wraps = [f"-Wl,--wrap={name}" for name in wrapped]
    linked = [tools.gxx, *shared, *own, tools.cudart_static, *expand(flags.link, roots), *wraps, "-o", extension]
    subprocess.run(list(map(str, linked)), check=True)
    _, manifest = stand_in_build(replace(selection, configs=tuple(configs)))
    told = replace(
        manifest,
        build_id="cccccccccccc",
        extension=extension.name,
        extension_sha256=file_digest(extension),
        extension_bytes=extension.stat().st_size,
        torch_target=TORCH_TARGET,
        created="2026-11-22T00:00:00Z",
    )
    write_manifest(told, folder / "manifest.json")
    tell(done="built", names=[entry.name for entry in told.entries], sources=[source.name for source in sources])
    return folder


def write_table(path: Path) -> None:
    """A table whose choice for 64 pages of 32 differs from the model's."""
    row = TableRow(
        op="toy_pages",
        sizes={"length": 64, "page": 32},
        variants=("sm90a_toy_p1",),
        us=(1.0,),
        digests=(),
        tied=1,
        source="s",
    )
    source = Source(
        gpu="NVIDIA H200",
        date="2026-11-22",
        program="toy",
        sm_count=132,
        driver=None,
        toolkit=None,
        build="b",
        clocks_mhz={},
    )
    path.write_text(table_text(make_table("NVIDIA H200", "sm90a", {"s": source}, [row])))


def call(op: object) -> None:
    """Through the extension, and by the reference."""
    pages = torch.tensor([[0.4, 1.6, 99.0, -3.0], [2.5, 3.5, float("nan"), 7.0], [0.0, 0.0, 0.0, 0.0]])
    codes, peaks = torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3)
    op(codes, peaks, pages, 1)
    tell(done="called", codes=codes.tolist(), peaks=peaks.tolist())


def explain(folder: Path, length: int) -> None:
    try:
        command(["explain", PACK.name, "--length", str(length), "--page", "32", "--build", str(folder)])
    except SystemExit as end:
        tell(done="explained", exit=end.code)


def export(folder: Path, home: Path, gxx: Path) -> None:
    """Its kernel runs where it is called, so a stand-in of CUDA's memory is all that the host program needs."""
    it = home / "exported"
    try:
        command(["export", "sm90a_toy_p4", "--build", str(folder), "--length", "5", "--page", "32", "--out", str(it)])
    except SystemExit as end:
        tell(
            done="exported",
            exit=end.code,
            files=sorted(p.relative_to(it).as_posix() for p in it.rglob("*") if p.is_file()),
        )
    flags = [
        "-std=c++17",
        "-x",
        "c++",
        "-I.",
        "-I",
        FAMILY.home / "host",
        "main.cu",
        "sm90a_toy_p4.cu",
        "-o",
        "reproducer",
    ]
    subprocess.run(list(map(str, [gxx, *flags])), cwd=it, check=True)
    data = (it / "data.bin").read_bytes()
    # Codes of 5 x 16 bytes and peaks of 5 x 4, each twice: the test must find the second copy. Behind all, of 5 x 32 codes, stand
    # the lowest and then the highest values, u16. In turn: nothing is changed, a byte of codes, a highest, a lowest, a peak.
    ends = len(data) - 4 * 5 * 32
    changed = [_with(data, at, bits) for at, bits in ((80, 0xF0), (ends + 320, 1), (ends + 1, 0x80), (180, 0xF0))]
    for wanted in (data, *changed, b""):
        (it / "data.bin").write_bytes(wanted)
        done = subprocess.run([it / "reproducer"], cwd=it, capture_output=True, text=True, check=False)
        tell(done="reproduced", exit=done.returncode, out=done.stdout.splitlines(), err=done.stderr)


def _with(data: bytes, at: int, flipped: int) -> bytes:
    return data[:at] + bytes([data[at] ^ flipped]) + data[at + 1 :]


def main() -> None:
    objects, home = map(Path, sys.argv[1:3])
    examine(FAMILY, FAMILY.home / "templates")
    folder = build(objects, home, sys.argv[3:])
    write_table(home / "table.json")
    os.environ["GEMMILL_TABLES"] = str(home / "table.json")
    loaded = Build(folder)
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(PACK.schema)
    library._register_fake(PACK.name, ops._fake(PACK))
    loaded.register(NAMESPACE, "CPU")
    op = getattr(getattr(torch.ops, NAMESPACE), PACK.name).default
    call(op)
    call(getattr(torch.ops.gemmill, PACK.name).default)
    for length in (64, 65):
        row, trust = loaded.choose(call_of({"length": length, "page": 32}), 132)
        tell(done="chosen", length=length, name=loaded.table.entries[row].name, trust=trust.name)
    for entry in loaded.manifest.entries:
        loaded.pin(loaded.table.rows_of(entry.name)[0])
        cases = [replace(case, namespace=NAMESPACE) for case in of_config(parse_name(entry.name))]
        found = verdict(entry.name, cases, "cpu")
        tell(done="verified", name=to_name(entry.config), cases=found.cases, failures=found.failures)
        loaded.pin(-1)
    for namespace in ("gemmill", NAMESPACE):
        child.NAMESPACE = namespace
        found = child.Child(FuzzSpec(ops=(PACK.name,), seed=1)).run(0, 400)
        tell(done="fuzzed", namespace=namespace, **found)
    for length in (64, 65):
        explain(folder, length)
    export(folder, home, find_toolchain().gxx)
