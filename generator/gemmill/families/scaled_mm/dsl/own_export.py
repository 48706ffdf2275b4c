"""Ahead-of-time compilation of a kernel with a user's epilogue: an object and a C header, made without a GPU."""

# mypy: ignore-errors
from pathlib import Path

from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.gemm.export import compile_for, export_kernel


def export(config: OwnConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    The contract is that of `export.export`, for kernels without an epilogue of one's own.
    """
    compile_for(config.arch)
    from gemmill.families.scaled_mm.dsl.own_mm import OwnMm

    return export_kernel(OwnMm(config), symbol, folder)
