"""Ahead-of-time compilation of a DSL kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
import os
from pathlib import Path

from gemmill.vocab import Arch

HOST_TARGET = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3"
"""The host code's processor: by default it would be the build machine's, and AVX-512 would not run everywhere."""


def compile_for(arch: Arch) -> None:
    """Sets the architecture. The DSL reads it at its import, which comes after this."""
    os.environ["CUTE_DSL_ARCH"] = str(arch).replace("sm", "sm_")


def export_kernel(kernel, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles a kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    One process for each call: the DSL's compiler is not thread-safe. Raises the errors of the DSL.
    """
    import cutlass.cute as cute
    from cutlass import Int64
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    struct = make_ptr(Int64, 8, cute.AddressSpace.generic, assumed_align=8)
    type(kernel).kernel.set_name_prefix(f"{symbol}_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)
    options = f"--host-target '{HOST_TARGET}'"
    compiled = cute.compile(kernel, struct, struct, Int64(1), make_fake_stream(), options=options)
    folder.mkdir(parents=True, exist_ok=True)
    compiled.export_to_c(file_path=str(folder), file_name=symbol, function_prefix=symbol)
    return folder / f"{symbol}.o", folder / f"{symbol}.h"
