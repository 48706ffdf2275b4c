"""A GEMM on its own: source, command line and a host program, to show a fault or a time to somebody without gemmill.

A kernel of the CuTe DSL is compiled by the package of this generator: there, gemmill must be installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gemmill.build.sources import expand, flags_for, is_of_dsl
from gemmill.emit import EmittedFile, emit
from gemmill.emit.render import render
from gemmill.locations import kernels_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.vocab import DType, ScaleGranularity

_CODES = {
    DType.E4M3: ("uint8_t", ("0xC0", "0xB8", "0x00", "0x38", "0x40")),
    DType.S8: ("int8_t", ("-2", "-1", "0", "1", "2")),
    DType.BF16: ("uint16_t", ("0xC000", "0xBF80", "0x0000", "0x3F80", "0x4000")),
    DType.F16: ("uint16_t", ("0xC000", "0xBC00", "0x0000", "0x3C00", "0x4000")),
}
"""C type, and the bits of -2, -1, 0, 1 and 2."""
_OUT = {DType.BF16: "__nv_bfloat16", DType.F16: "__half"}
_ADAPTER = """import sys
from pathlib import Path

from gemmill.emit.adapter import emit_adapter, read_header

Path("adapter.cpp").write_text(emit_adapter(sys.argv[1], sys.argv[2], read_header(Path(f"{sys.argv[1]}.h").read_text())))
"""


def reproducer(config: Any, sizes: Mapping[str, int], expected: str) -> tuple[EmittedFile, ...]:
    """The files of a GEMM's reproducer at sizes m, n and k; `expected` says how long it took where it was measured.

    Raises TemplateError, and KeyError for operands that have no codes here.
    """
    name, symbol = to_name(config), symbol_of(config)
    emitted = emit(config)
    code_type, codes = _CODES[config.problem.a_dtype]
    family = REGISTRY.family_of(config)
    (row, *_) = family.tuning.rows(config, REGISTRY.accepted(config), 0)
    values = {
        **sizes,
        "name": name,
        "symbol": symbol,
        "group": config.problem.group_size,
        "blocks": config.problem.b_scale is ScaleGranularity.BLOCK,
        "azp": "azp" in config.problem.epilogue,
        "code_type": code_type,
        "codes": codes,
        "out_type": _OUT[config.problem.out_dtype],
        "raster_order": int(row.facts.raster_order),
        "swizzle": int(row.facts.swizzle),
        "splits": int(row.facts.splits),
        "expected": expected,
    }
    files = [
        EmittedFile(path=PurePosixPath("main.cu"), text=render("export/main.cu.jinja", values)),
        EmittedFile(path=PurePosixPath(emitted.path.name), text=emitted.text),
        EmittedFile(path=PurePosixPath("build.sh"), text=_script(config, emitted.path.name, symbol)),
        *_copied("core", family.name, "extension/driver.cpp", "extension/driver.h"),
    ]
    if is_of_dsl(config):
        files += [EmittedFile(path=PurePosixPath("adapter.py"), text=_ADAPTER), *_copied("extension/cutedsl.cpp")]
    return tuple(files)


def _copied(*names: str) -> Iterator[EmittedFile]:
    """gemmill's own files below kernels/, as they lie there."""
    for name in names:
        path = kernels_dir() / name
        for file in sorted(path.glob("*.*h")) if path.is_dir() else [path]:
            relative = file.relative_to(kernels_dir())
            yield EmittedFile(path=PurePosixPath(relative.as_posix()), text=file.read_text(encoding="utf-8"))


def _script(config: Any, source: str, symbol: str) -> str:
    """What compiles and runs it: the flags of a build."""
    roots = {"gemmill": Path(), "cutlass": Path("$CUTLASS_INCLUDE")}
    flags = flags_for(config.arch)
    if is_of_dsl(config):
        return _lines(
            "# Needs nvcc, and Python with gemmill[toolchain,dsl], which compiles the kernel and writes the adapter to it.",
            f"python {source} --out .",
            f"python adapter.py {symbol} {to_name(config)}",
            "RUNTIME=$(python -c 'from gemmill.build.dsl import find_dsl; print(find_dsl(13).runtime)')",
            f"nvcc -std=c++17 -O2 -gencode={config.arch.gencode} -I. -Iextension main.cu adapter.cpp "
            f'extension/cutedsl.cpp extension/driver.cpp {symbol}.o "$RUNTIME" -o reproducer',
        )
    words = [f'"{flag}"' if "$" in flag else flag for flag in expand(flags.cuda, roots) if flag != "-Xptxas=-v"]
    return _lines(
        "# Needs nvcc and CUTLASS's headers.",
        ': "${CUTLASS_INCLUDE:?name the include folder of CUTLASS}"',
        f"nvcc {' '.join(words)} -Iextension main.cu {source} extension/driver.cpp -o reproducer",
    )


def _lines(*steps: str) -> str:
    shell: Sequence[str] = ("#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', *steps, "./reproducer")
    return "\n".join(shell) + "\n"
