"""Ahead-of-time compilation of a gated kernel: an object and a C header, made without a GPU."""

# mypy: ignore-errors
from pathlib import Path

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.gemm.export import compile_for, export_kernel


def export(config: GatedConfig, symbol: str, folder: Path) -> tuple[Path, Path]:
    """Compiles one kernel and writes `<symbol>.o` and `<symbol>.h` into `folder`. Returns their paths.

    Raises ValueError for a config that the kernel cannot be made of, and the errors of the DSL.
    """
    compile_for(config.arch)
    from gemmill.families.gated_mm.dsl.expert_mm import ExpertGatedMm
    from gemmill.families.gated_mm.dsl.gated_mm import GatedMm

    maker = ExpertGatedMm if config.operands.by_expert else GatedMm
    return export_kernel(maker(config), symbol, folder)
