"""Spelling a config in CUDA C++."""

from gemmill.families.fused_moe.config import ExpertsConfig, PackedExpertsConfig
from gemmill.family import Spelled
from gemmill.formats.layout import SIDE
from gemmill.vocab import DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

_TYPES = {DType.BF16: "__nv_bfloat16", DType.F16: "__half", DType.E4M3: "gemmill::fused_moe::Coded"}


def spell(config: ExpertsConfig) -> Spelled:
    """The template of an ExpertsConfig, and what fills its holes."""
    values = {
        "half_type": _TYPES[config.out_dtype],
        "element_type": _TYPES[config.dtype],
        "grouped": str(bool(config.group_size)).lower(),
        "tile_tokens": config.tile_tokens,
    }
    return Spelled(template="fused_moe/fused_experts.cu.jinja", values=values)


_CPP_BLOCK: dict[Format, str] = {NVFP4: "Fp4Block<NvFp4>", MXFP4: "Fp4Block<MxFp4>"}
"""Classes of kernels/blockscaled/widen_e2m1.cuh by format."""


def spell_packed(config: PackedExpertsConfig) -> Spelled:
    """The template of a PackedExpertsConfig, and what fills its holes."""
    values = {
        "products": "WarpProducts" if config.by_warps else "WarpgroupProducts",
        "block": _CPP_BLOCK[config.format],
        "row_groups": config.tile_rows // SIDE,
        "k_groups": config.stage_parts if config.by_warps else 1,
        "stage_parts": config.stage_parts,
        "parts": 1 if config.by_warps else config.stage_parts,
        "tile_tokens": config.tile_tokens,
        "stages": config.stages,
        "loaders": config.loaders,
    }
    return Spelled(template="fused_moe/packed_experts.cu.jinja", values=values)
