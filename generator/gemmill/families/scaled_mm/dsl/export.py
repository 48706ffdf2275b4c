"""Ahead-of-time compilation of a DSL kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
import os
from pathlib import Path

from gemmill.families.scaled_mm.config import KernelConfig

HOST_TARGET = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3"
"""The host code's processor: by default it would be the build machine's, and AVX-512 would not run everywhere."""


def export(config: KernelConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    One process for each call: the DSL's compiler is not thread-safe, and its architecture is fixed when it is imported.
    Raises ValueError for a config that the kernel cannot be made of, and what the DSL raises where it fails.
    """
    os.environ["CUTE_DSL_ARCH"] = str(config.arch).replace("sm", "sm_")
    import cutlass.cute as cute
    from cutlass import Float32, Int32, Int64
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    from gemmill.families.scaled_mm.dsl.scaled_mm import ScaledMm
    from gemmill.gemm.elements import ELEMENT_OF

    def pointer(element, alignment):
        return make_ptr(element, alignment, cute.AddressSpace.gmem, assumed_align=alignment)

    ScaledMm.kernel.set_name_prefix(f"{symbol}_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel = ScaledMm(config)
    operand, out = ELEMENT_OF[config.operands.a_dtype], ELEMENT_OF[config.operands.out_dtype]
    arguments = [pointer(operand, 16), pointer(operand, 16), pointer(out, 16)]
    arguments += [pointer(Float32, 4), pointer(Float32, 4), pointer(out, 2), pointer(Int32, 4), pointer(Int32, 4)]
    arguments += [pointer(Float32, 16)]
    arguments += [Int64(1)] * 4 + [Int32(1)] * 11 + [Int64(1)] * 4
    compiled = cute.compile(kernel, *arguments, make_fake_stream(), options=f"--host-target '{HOST_TARGET}'")
    folder.mkdir(parents=True, exist_ok=True)
    compiled.export_to_c(file_path=str(folder), file_name=symbol, function_prefix=symbol)
    return folder / f"{symbol}.o", folder / f"{symbol}.h"
