"""A GEMM on its own: source, command line and a host program, to show a fault or a time to somebody without gemmill.

A kernel of the CuTe DSL is compiled by the package of this generator: there, gemmill must be installed.
"""

from collections.abc import Iterator, Mapping
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
        "dsl": is_of_dsl(config),
        "source": emitted.path.name,
        "gencode": config.arch.gencode,
        "flags": _flags(config),
    }
    rendered = ["main.cu", "build.sh", *(["adapter.py"] if is_of_dsl(config) else [])]
    copied = [
        f"extension/{file}" for file in ("driver.cpp", "driver.h", *(["cutedsl.cpp"] if is_of_dsl(config) else []))
    ]
    return (
        *(EmittedFile(path=PurePosixPath(file), text=render(f"export/{file}.jinja", values)) for file in rendered),
        EmittedFile(path=PurePosixPath(emitted.path.name), text=emitted.text),
        *_copied("core", family.name, *copied),
    )


def _flags(config: Any) -> str:
    """Those of a build, for a shell."""
    expanded = expand(flags_for(config.arch).cuda, {"gemmill": Path(), "cutlass": Path("$CUTLASS_INCLUDE")})
    return " ".join(f'"{flag}"' if "$" in flag else flag for flag in expanded if flag != "-Xptxas=-v")


def _copied(*names: str) -> Iterator[EmittedFile]:
    """gemmill's own files below kernels/, as they lie there."""
    for name in names:
        path = kernels_dir() / name
        for file in sorted(path.glob("*.*h")) if path.is_dir() else [path]:
            relative = file.relative_to(kernels_dir())
            yield EmittedFile(path=PurePosixPath(relative.as_posix()), text=file.read_text(encoding="utf-8"))
