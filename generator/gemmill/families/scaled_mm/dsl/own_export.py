"""Ahead-of-time compilation of a kernel with a user's epilogue: an object and a C header, made without a GPU."""

# mypy: ignore-errors
from pathlib import Path

from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.gemm.export import compile_for, export_kernel
from gemmill.gemm.traced import Stored


def export(config: OwnConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    The contract is that of `export.export`, for kernels without an epilogue of one's own.
    """
    compile_for(config.arch)
    from cutlass import Float32, Int32

    from gemmill.families.scaled_mm.dsl.own_mm import OwnMm

    kernel = OwnMm(config)
    type_of = {Stored.F32: (Float32, 4), Stored.S32: (Int32, 4), Stored.OUT: (kernel.out_type, 2)}
    sides = {"row": kernel.plan.m_fields, "column": kernel.plan.n_fields}
    types = {f"{side}{i}": type_of[given.stored] for side, fields in sides.items() for i, given in enumerate(fields)}
    return export_kernel(kernel, symbol, folder, types)
