"""Spelling a config in CUDA C++."""

from gemmill.families.fused_experts.config import ExpertsConfig, PackedExpertsConfig
from gemmill.family import Spelled
from gemmill.vocab import DType

_TYPES = {DType.BF16: "__nv_bfloat16", DType.F16: "__half", DType.E4M3: "gemmill::fused_moe::Coded"}


def spell(config: ExpertsConfig) -> Spelled:
    """The template of an ExpertsConfig, and the values of its holes."""
    if config.streamed:
        values = {"half_type": _TYPES[config.out_dtype], "tile_tokens": config.tile_tokens}
        return Spelled(template="fused_experts/streamed_experts.cu.jinja", values=values)
    if config.apart:
        values = {
            "half_type": _TYPES[config.out_dtype],
            "coded": str(config.is_coded).lower(),
            "group": config.group_size,
        }
        return Spelled(template="fused_experts/apart_experts.cu.jinja", values=values)
    values = {
        "half_type": _TYPES[config.out_dtype],
        "element_type": _TYPES[config.dtype],
        "grouped": str(bool(config.group_size)).lower(),
        "tile_tokens": config.tile_tokens,
    }
    return Spelled(template="fused_experts/fused_experts.cu.jinja", values=values)


_CPP_BLOCK = {
    "nvfp4": "Fp4Block<NvFp4>",
    "mxfp4": "Fp4Block<MxFp4>",
    "nvfp4_2to4": "SparseFp4Block<16>",
    "nvfp4_2to4_8": "SparseFp4Block<8>",
    "mxfp4_e4m3": "FoldedBlock<MxFp4Folded>",
    "nvfp4_e4m3": "FoldedBlock<NvFp4Rounded>",
}
"""Classes of blocks in kernels/blockscaled, by packing."""


def spell_packed(config: PackedExpertsConfig) -> Spelled:
    """The template of a PackedExpertsConfig, and the values of its holes."""
    body, block, sparse = config.body, _CPP_BLOCK[str(config.packing)], bool(config.sparse_group)
    up, down = (body.product.format(block=block, epilogue=epilogue) for epilogue in body.epilogues)
    values = {
        "kernels": body.header,
        "launch": body.launch,
        "header": body.sparse_header if sparse else "",
        "first": body.first,
        "params": body.params,
        "products": body.products[sparse],
        "block": block,
        "up": up,
        "down": down,
        "row_groups": body.row_groups[config.tile_tokens],
        "k_groups": 1,
        "stage_parts": config.stage_parts,
        "parts": config.stage_parts,
        "tile_tokens": config.tile_tokens,
        "stages": config.stages,
        "loaders": config.loaders,
    }
    return Spelled(template="fused_experts/packed_experts.cu.jinja", values=values)
