"""Spelling a config: in Python, a file that instantiates a kernel of gemmill.families.moe.dsl with it, or in CUDA C++."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.moe.biased_config import BiasedGroupedConfig, BiasedUnalignedGroupedConfig
from gemmill.families.moe.config import GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.family import Spelled
from gemmill.formats.layout import SIDE
from gemmill.gemm.config import ACCUMULATOR_OF
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4


def spell(config: GroupedConfig) -> Spelled:
    """The template's holes are Python expressions of all fields."""
    told = {field.name: getattr(config, field.name) for field in fields(config)}
    is_biased = isinstance(config, BiasedGroupedConfig)
    holes = {
        "config": type(config).__name__,
        "config_module": "biased_config" if is_biased else "config",
        "export_module": "biased_export" if is_biased else "export",
        "fields": {name: _spell(value) for name, value in told.items()},
        "vocabulary": sorted({type(value).__name__ for value in told.values() if isinstance(value, Enum)}),
    }
    return Spelled(template="moe/grouped_mm.py.jinja", values=holes)


def spell_unaligned(config: UnalignedGroupedConfig) -> Spelled:
    """The template, and what fills the holes."""
    holes = {
        "element_type": config.dtype.cutlass_type,
        "accumulator_type": ACCUMULATOR_OF[config.dtype].cutlass_type,
        "d_type": config.out_dtype.cutlass_type,
        "factors": "of_groups" if config.group_size else "of_channels" if config.scaled else "none",
        "ends": isinstance(config, BiasedUnalignedGroupedConfig),
    }
    return Spelled(template="moe/unaligned_grouped_mm.cu.jinja", values=holes)


_CPP_BLOCK: dict[tuple[DType, Format], str] = {
    (DType.BF16, NVFP4): "Fp4Block<NvFp4>",
    (DType.BF16, MXFP4): "Fp4Block<MxFp4>",
    (DType.E4M3, MXFP4): "FoldedBlock<MxFp4Folded>",
}
"""Class of a block, in kernels/blockscaled/widen_e2m1.cuh or fold_e2m1.cuh."""


def spell_packed(config: PackedGroupedConfig) -> Spelled:
    """The template, and what fills the holes."""
    parts = config.stage_columns // config.block_columns
    holes = {
        "products": "WarpProducts" if config.by_warps else "WarpgroupProducts",
        "block": _CPP_BLOCK[config.dtype, config.format],
        "d_type": config.out_dtype.cutlass_type,
        "row_groups": config.tile_n // SIDE,
        "k_groups": parts if config.by_warps else 1,
        "stage_parts": parts,
        "parts": 1 if config.by_warps else parts,
        "tile_m": config.tile_m,
        "stages": config.stages,
        "loaders": config.loaders,
    }
    return Spelled(template="moe/packed_grouped_mm.cu.jinja", values=holes)


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
