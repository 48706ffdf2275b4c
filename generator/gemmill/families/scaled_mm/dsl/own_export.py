"""Ahead-of-time compilation of a kernel with a user's epilogue: an object and a C header, made without a GPU."""

# mypy: ignore-errors
import os
from pathlib import Path

from gemmill.families.scaled_mm.dsl.export import HOST_TARGET
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.gemm.traced import MOST_OF_A_KIND, Stored


def export(config: OwnConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    The contract is that of `export.export`, for kernels without an epilogue of one's own.
    """
    os.environ["CUTE_DSL_ARCH"] = str(config.arch).replace("sm", "sm_")
    import cutlass.cute as cute
    from cutlass import Float32, Int32, Int64
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    from gemmill.families.scaled_mm.dsl.own_mm import OwnMm
    from gemmill.gemm.elements import ELEMENT_OF

    def pointer(element, alignment):
        return make_ptr(element, alignment, cute.AddressSpace.gmem, assumed_align=alignment)

    OwnMm.kernel.set_name_prefix(f"{symbol}_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel = OwnMm(config)
    operand, out = ELEMENT_OF[config.operands.a_dtype], ELEMENT_OF[config.operands.out_dtype]
    type_of = {Stored.F32: (Float32, 4), Stored.S32: (Int32, 4), Stored.OUT: (out, 2)}
    arguments = [pointer(operand, 16), pointer(operand, 16), pointer(out, 16)]
    for fields in (kernel.plan.m_fields, kernel.plan.n_fields):
        arguments += [pointer(*type_of[given.stored]) for given in fields]
        arguments += [pointer(Float32, 4)] * (MOST_OF_A_KIND - len(fields))
    arguments += [Int64(1)] * 3 + [Int32(1)] * (3 + 2 * MOST_OF_A_KIND)
    arguments += [Float32(1)] * MOST_OF_A_KIND + [Int32(1)] * 6
    compiled = cute.compile(kernel, *arguments, make_fake_stream(), options=f"--host-target '{HOST_TARGET}'")
    folder.mkdir(parents=True, exist_ok=True)
    compiled.export_to_c(file_path=str(folder), file_name=symbol, function_prefix=symbol)
    return folder / f"{symbol}.o", folder / f"{symbol}.h"
