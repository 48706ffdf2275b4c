"""Ahead-of-time compilation of a DSL kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path

from gemmill.vocab import Arch

HOST_TARGET = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3"
"""The host code's processor: by default it would be the build machine's, and AVX-512 would not run everywhere."""
_INTEGERS = ("azp_adj", "azp", "offsets", "expert_map", "token_ids")
"""Arguments that are addresses of int32; others are of float32, or of the operands' types."""


def compile_for(arch: Arch) -> None:
    """Sets the architecture. The DSL reads it at its import, which comes after this."""
    os.environ["CUTE_DSL_ARCH"] = str(arch).replace("sm", "sm_")


def export_kernel(kernel, symbol: str, folder: Path, types: Mapping = {}) -> tuple[Path, Path]:
    """Compiles a kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    The arguments are those of the kernel's call. `types` gives (element, alignment) of the addresses that other families
    lack. One process for each call: the DSL's compiler is not thread-safe. Raises the errors of the DSL.
    """
    import cutlass.cute as cute
    from cutlass import Float32, Int32
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    out = kernel.out_type
    known = {"a": (kernel.x_type, 16), "b": (kernel.x_type, 16), "d": (out, 16), "bias": (out, 2)}
    known |= {"workspace": (Float32, 16), **dict.fromkeys(_INTEGERS, (Int32, 4)), **types}
    arguments = []
    for name, parameter in signature(kernel.__call__).parameters.items():
        if parameter.annotation is cute.Pointer:
            element, alignment = known.get(name, (Float32, 4))
            arguments.append(make_ptr(element, alignment, cute.AddressSpace.gmem, assumed_align=alignment))
        elif name != "stream":
            arguments.append(parameter.annotation(1))
    type(kernel).kernel.set_name_prefix(f"{symbol}_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)
    compiled = cute.compile(kernel, *arguments, make_fake_stream(), options=f"--host-target '{HOST_TARGET}'")
    folder.mkdir(parents=True, exist_ok=True)
    compiled.export_to_c(file_path=str(folder), file_name=symbol, function_prefix=symbol)
    return folder / f"{symbol}.o", folder / f"{symbol}.h"
