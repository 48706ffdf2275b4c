"""Ahead-of-time compilation of a grouped kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
from pathlib import Path

from gemmill.families.grouped_mm.config import GroupedConfig
from gemmill.gemm.export import compile_for, export_kernel


def export(config: GroupedConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    Raises ValueError for a config that the kernel cannot be made of, and the errors of the DSL.
    """
    compile_for(config.arch)
    from gemmill.families.grouped_mm.dsl.grouped_mm import GroupedMm

    return export_kernel(GroupedMm(config), symbol, folder)
