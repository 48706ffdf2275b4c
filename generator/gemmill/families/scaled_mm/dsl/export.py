"""Ahead-of-time compilation of a DSL kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
from pathlib import Path

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.gemm.export import compile_for, export_kernel


def export(config: KernelConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    Raises ValueError for a config that the kernel cannot be made of, and the errors of the DSL.
    """
    compile_for(config.arch)
    from gemmill.families.scaled_mm.dsl.scaled_mm import ScaledMm

    return export_kernel(ScaledMm(config), symbol, folder)
