"""The emitted kernels, whole, on the CPU: threads are fibers, and the few instructions that a CPU has not are spelled out
(host/). Launches, shared memory, barriers and index maps are the kernels' own."""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from families.kv_cache.compile.structs import Launch, arguments_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.families.kv_cache.cases.held import Given
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.locations import kernels_dir
from gemmill.space.names import parse_name, symbol_of

HERE = Path(__file__).parent


def library(names: Sequence[str], toolchain: ToolchainPaths, folder: Path) -> ctypes.CDLL:
    """The emitted kernels of sm90a of these names, compiled for the host."""
    configs = [parse_name(f"sm90a_kvcache_{name}") for name in names]
    (folder / "kernels.cpp").write_text("\n".join(emit(config).text for config in configs))
    includes = [f"-I{HERE / 'host'}", f"-I{kernels_dir()}", *(f"-isystem{path}" for path in toolchain.include_dirs)]
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared"]
    command = [toolchain.gxx, *options, *includes, folder / "kernels.cpp", "-o", folder / "kernels.so"]
    subprocess.run(list(map(str, command)), check=True)
    loaded = ctypes.CDLL(str(folder / "kernels.so"))
    for config in configs:
        if hasattr(loaded, workspace := f"{symbol_of(config)}_workspace"):
            getattr(loaded, workspace).restype = ctypes.c_int64
    return loaded


def launched(
    kernels: ctypes.CDLL,
    name: str,
    given: dict[str, Any],
    sm_count: int = 132,
    slices: int = 0,
    kept: list[Tensor] | None = None,
) -> tuple[Given, Given]:
    """Arguments before and after a launch of a kernel on a device of so many multiprocessors. `slices` is an attention's setting, and `kept`
    gets the workspace."""
    before = {n: v.clone(memory_format=torch.preserve_format) if isinstance(v, Tensor) else v for n, v in given.items()}
    symbol, how = f"gemmill_sm90a_kvcache_{name}", Launch(sm_count=sm_count)
    args = arguments_of(given)
    if slices:
        args.slices = slices
    if hasattr(kernels, f"{symbol}_workspace"):
        size = getattr(kernels, f"{symbol}_workspace")(ctypes.byref(args), ctypes.byref(how))
        memory = torch.full((size,), 0xFF, dtype=torch.uint8)
        how.workspace = memory.data_ptr()
        if kept is not None:
            kept.append(memory)
    assert getattr(kernels, symbol)(ctypes.byref(args), ctypes.byref(how)) == 0
    return before, given


def assert_right(kernels: ctypes.CDLL, name: str, case: Any, sm_count: int = 132, **changed: Any) -> None:
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True)) | changed
    found = parts(case.schema.name, *launched(kernels, name, given, sm_count))
    assert found and not report(found), case


def assert_same_however_dealt(kernels: ctypes.CDLL, name: str, case: Any) -> None:
    """By the device, from one block for all slices to a block for each; and in a batch of others' lengths: three sequences, the second empty."""
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))

    def found(sm_count: int, which: slice = slice(None)) -> list[Tensor]:
        own = {n: x[which] if n in ("q", "out", "lse", "block_table", "seq_lens") else x for n, x in given.items()}
        own |= {n: torch.full_like(x, torch.nan) for n, x in own.items() if n in ("out", "lse")}
        before, after = launched(kernels, name, own, sm_count, slices=4)
        assert not report(parts(case.schema.name, before, after))
        return [after[n].contiguous().view(torch.uint8) for n in ("out", "lse")]

    whole = found(3)
    for sm_count in (6, 12):
        assert all(map(torch.equal, found(sm_count), whole)), sm_count
    for i in (0, 2):
        alone = found(4, slice(i, i + 1))
        assert all(torch.equal(x, y[i : i + 1]) for x, y in zip(alone, whole, strict=True)), i


def bits_of_slices(kernels: ctypes.CDLL, name: str, case: Any, given: Given, sm_count: int, slices: int) -> Tensor:
    """The bits of a right result by so many fixed slices."""
    given["out"].fill_(torch.nan)
    before, after = launched(kernels, name, given, sm_count, slices=slices)
    assert not report(parts(case.schema.name, before, after))
    return after["out"].view(torch.uint8).clone()


def assert_same_in_groups(kernels: ctypes.CDLL, name: str, case: Any) -> None:
    """By one block, whose groups of warps take several slices each, and by a block for each slice."""
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    found = [bits_of_slices(kernels, name, case, given, sm_count, 16) for sm_count in (1, 40)]
    assert torch.equal(*found)
