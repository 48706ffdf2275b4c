"""gemmill's own host code of the CuTe DSL's kernels launches as the DSL's does, by a CUDA that records: so without a GPU."""

import ctypes
import io
import os
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from compile.binding.structs import struct_of
from gemmill.build.cubins import embedded_cubins
from gemmill.build.dsl import find_dsl
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.build.planning import survey
from gemmill.build.toolchain import ToolchainPaths
from gemmill.build.workshop import Workshop, open_workshop
from gemmill.emit.adapter import MachineCode, emit_host_code, has_host_code
from gemmill.locations import kernels_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch

_PARAMETER = 0x17
_HOST = [kernels_dir() / "extension" / "driver_kernel.cpp", kernels_dir() / "extension" / "cutedsl.cpp"]
_CALLS = 200
NAMES = sorted({to_name(c.compiled) for c in select("smoke").configs if has_host_code(to_name(c.compiled))})
How = struct_of("core/abi.h", "gemmill_launch")
_CALLER = """
#include "core/abi.h"
extern "C" int32_t SYMBOL(void const* arguments, gemmill_launch const* how);  // not to be seen from outside
extern "C" int32_t call(void const* arguments, gemmill_launch const* how) { return SYMBOL(arguments, how); }
"""


class Launch(ctypes.Structure):
    """The stand-in's record."""

    _fields_ = [
        ("launches", ctypes.c_int),
        *((name, ctypes.c_uint * 3) for name in ("grid", "block")),
        ("shared_bytes", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("programmatic", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("most_shared_bytes", ctypes.c_int),
        ("non_portable", ctypes.c_int),
        ("parameters", (ctypes.c_ubyte * 128) * 64),
    ]


def _parameter_sizes(code: bytes) -> list[int]:
    """Bytes of each parameter of the kernel in an object, as its machine code says."""
    (cubin,) = embedded_cubins(code)
    (section,) = [s for s in ELFFile(io.BytesIO(cubin)).iter_sections() if s.name.startswith(".nv.info.")]
    data, at, found = section.data(), 0, {}
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form == 4 and attribute == _PARAMETER:
            _, number, _, flags = struct.unpack_from("<IHHI", data, at + 4)
            found[number] = flags >> 18
        at += 4 + (size if form == 4 else 0)
    return [found[number] for number in range(len(found))]


class Recorded:
    """A library of one kernel's launch function and the stand-in for CUDA."""

    def __init__(self, library: Path, sizes: Sequence[int]) -> None:
        self._library = ctypes.CDLL(str(library), mode=os.RTLD_LAZY)  # the stand-in lacks functions that nobody calls
        self._function = self._library.call
        self._sizes = sizes
        ctypes.c_int.in_dll(self._library, "count").value = len(sizes)
        (ctypes.c_int * 64).in_dll(self._library, "sizes")[: len(sizes)] = sizes

    def __call__(self, args: ctypes.Structure, how: ctypes.Structure) -> dict[str, Any]:
        assert self._function(ctypes.byref(args), ctypes.byref(how)) == 0
        told = Launch.in_dll(self._library, "launched")
        parameters = [self._value(bytes(told.parameters[i][:size])) for i, size in enumerate(self._sizes)]
        shape = {name: list(getattr(told, name)) for name in ("grid", "block", "cluster")}
        numbers = {name: getattr(told, name) for name in ("shared_bytes", "programmatic", "stream", "non_portable")}
        return {**shape, **numbers, "fits": told.most_shared_bytes >= told.shared_bytes, "parameters": parameters}

    @staticmethod
    def _value(data: bytes) -> bytes:
        if len(data) == 12:  # a divisor, with two bytes of padding
            return data[:10]
        if len(data) == 128:  # a tensor map: the driver, and not the caller, marks tensors below 128 KiB
            return data[:10] + bytes([data[10] & ~0x20]) + data[11:64]
        return data


@pytest.fixture(scope="module")
def workshop(smoke: BuildResult, toolchain: ToolchainPaths) -> Workshop:
    del smoke  # its objects are in the cache
    find_dsl(toolchain.cuda_major)
    return open_workshop(Arch.SM90A, BuildOptions())


@pytest.fixture(scope="module")
def objects(workshop: Workshop) -> dict[str, Path]:
    """The cached object of each kernel of the smoke selection, by name."""
    found = survey(select("smoke"), workshop).found.entries
    return {name: workshop.cache.object_path(entry) for entry in found for name in entry.members.values()}


@pytest.fixture(scope="module")
def compiled(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile C++ files to an object each, once, or link objects."""
    folder, known = tmp_path_factory.mktemp("host_code"), {}
    flags = [
        "-std=c++20",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-I{kernels_dir()}",
        f"-I{workshop.toolchain.home / 'include'}",
    ]

    def compile_(name: str, *files: Path) -> Path:
        parts = []
        for file in files:
            if file.suffix == ".cpp" and file not in known:
                known[file] = folder / f"{file.stem}.o"
                command = [workshop.toolchain.gxx, *flags, "-c", file, "-o", known[file]]
                subprocess.run(list(map(str, command)), check=True, cwd=folder)
            parts.append(known.get(file, file))
        made = folder / f"{name}.so"
        command = [workshop.toolchain.gxx, "-shared", "-Wl,-z,lazy", *parts, "-o", made]
        subprocess.run(list(map(str, command)), check=True)
        return made

    return compile_


def _drawn(kind: type[ctypes.Structure], dice: random.Random) -> ctypes.Structure:
    """Arguments of a call that a kernel of the family takes."""
    m, n, k = dice.randint(1, 9000), 16 * dice.randint(1, 900), 64 * dice.randint(1, 300)
    sizes = {"m": m, "n": n, "k": k, "lda": k + 16 * dice.randint(0, 3), "ldb": k + 16 * dice.randint(0, 3)}
    sizes |= {
        "ldd": n + 8 * dice.randint(0, 3),
        "raster_order": dice.randint(0, 2),
        "swizzle": dice.choice((1, 2, 3, 8)),
    }
    sizes |= {"splits": dice.randint(1, 8), "tokens": dice.randint(1, 9000), "slot": dice.choice((0, 0, 128, 200))}
    sizes |= {"experts": dice.randint(1, 256), "weights": dice.randint(1, 256), "b_stride_expert": n * (k + 64)}
    drawn = kind()
    for name, type_ in kind._fields_:
        value: Any = 256 * dice.randint(1, 1 << 40) if type_ is ctypes.c_void_p else dice.randint(0, 1 << 20)
        setattr(drawn, name, sizes.get(name, value))
    return drawn


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_is_that_of_the_dsl(name: str, objects, compiled, workshop: Workshop, tmp_path: Path) -> None:
    config, path = parse_name(name), objects[name]
    symbol, dsl = symbol_of(config), REGISTRY.kernels_of(config).dsl
    assert dsl is not None and dsl.host is not None and workshop.dsl is not None
    (code := tmp_path / "code").write_bytes(b"machine code that nobody runs")
    (source := tmp_path / f"{symbol}.cpp").write_text(
        emit_host_code(symbol, name, MachineCode(file=str(code), kernel="kernel"))
    )
    (caller := tmp_path / f"{symbol}.caller.cpp").write_text(_CALLER.replace("SYMBOL", symbol))
    stand_in = Path(__file__).with_name("stand_in_cuda.cpp")
    call = kernels_dir() / Path(dsl.host.header).with_suffix(".cpp")
    theirs = compiled(f"{symbol}.dsl", path, caller, _HOST[1], stand_in, workshop.dsl.runtime)
    ours = compiled(f"{symbol}.own", source, caller, call, *_HOST, stand_in)
    sizes = _parameter_sizes(path.read_bytes())
    expected, found = Recorded(theirs, sizes), Recorded(ours, sizes)
    kind, dice = struct_of(f"{REGISTRY.family_of(config).name}/abi.h", dsl.arguments), random.Random(name)
    for _ in range(_CALLS):
        args = _drawn(kind, dice)
        how = How(0x5000, 0x7000, 0, dice.choice((78, 132)), dice.randint(0, 1), dice.randint(0, 1))
        assert found(args, how) == expected(args, how), {field: getattr(args, field) for field, _ in kind._fields_}
