"""The spelling of a config in CUDA C++."""

from gemmill.families.grouped_mm.config import PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.family import Spelled
from gemmill.formats.layout import SIDE
from gemmill.gemm.config import ACCUMULATOR_OF
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4


def spell_unaligned(config: UnalignedGroupedConfig) -> Spelled:
    """The template, and the values of its holes."""
    holes = {
        "element_type": config.operands.dtype.cutlass_type,
        "accumulator_type": ACCUMULATOR_OF[config.operands.dtype].cutlass_type,
        "d_type": config.out_dtype.cutlass_type,
        "factors": "of_groups" if config.group_size else "of_channels" if config.operands.scaled else "none",
        "ends": config.biased,
        "groups": _groups(config),
    }
    return Spelled(template="grouped_mm/unaligned_grouped_mm.cu.jinja", values=holes)


def _groups(config: UnalignedGroupedConfig) -> str:
    """Elements of a group, and rows of weights that share a scale; nothing for those of 128, which the header has by default."""
    if config.group_size in (0, 128):
        return ""
    return f"{config.group_size}, {1 if config.rows_scaled else config.group_size}"


_CPP_BLOCK: dict[tuple[DType, Format], str] = {
    (DType.BF16, NVFP4): "Fp4Block<NvFp4>",
    (DType.BF16, MXFP4): "Fp4Block<MxFp4>",
    (DType.E4M3, MXFP4): "FoldedBlock<MxFp4Folded>",
}
"""Class of a block, in kernels/gemm/widen_e2m1.cuh or fold_e2m1.cuh."""


def spell_packed(config: PackedGroupedConfig) -> Spelled:
    """The template, and the values of its holes."""
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
    return Spelled(template="grouped_mm/packed_grouped_mm.cu.jinja", values=holes)
