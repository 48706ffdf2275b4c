"""Spelling a config in CUDA C++."""

from typing import Any

from gemmill.families.fused_moe.config import BOXES, MANY_CTAS, ExpertsConfig, PackedExpertsConfig
from gemmill.family import Spelled
from gemmill.formats.layout import SIDE
from gemmill.vocab import DType

_TYPES = {DType.BF16: "__nv_bfloat16", DType.F16: "__half", DType.E4M3: "gemmill::fused_moe::Coded"}


def spell(config: ExpertsConfig) -> Spelled:
    """The template of an ExpertsConfig, and what fills its holes."""
    if config.streamed:
        values = {"half_type": _TYPES[config.out_dtype], "tile_tokens": config.tile_tokens}
        return Spelled(template="fused_moe/streamed_experts.cu.jinja", values=values)
    if config.apart:
        values = {
            "half_type": _TYPES[config.out_dtype],
            "coded": str(config.is_coded).lower(),
            "group": config.group_size,
        }
        return Spelled(template="fused_moe/apart_experts.cu.jinja", values=values)
    values = {
        "half_type": _TYPES[config.out_dtype],
        "element_type": _TYPES[config.dtype],
        "grouped": str(bool(config.group_size)).lower(),
        "tile_tokens": config.tile_tokens,
    }
    return Spelled(template="fused_moe/fused_experts.cu.jinja", values=values)


_CPP_BLOCK = {
    "nvfp4": "Fp4Block<NvFp4>",
    "mxfp4": "Fp4Block<MxFp4>",
    "nvfp4_2to4": "SparseFp4Block<16>",
    "nvfp4_2to4_8": "SparseFp4Block<8>",
    "mxfp4_e4m3": "FoldedBlock<MxFp4Folded>",
    "nvfp4_e4m3": "FoldedBlock<NvFp4Rounded>",
}
"""Classes of blocks in kernels/blockscaled, by packing."""


_PRODUCTS = {
    (False, False): "WarpgroupProducts",
    (False, True): "TurnedWarpProducts",
    (True, False): "SparseWarpgroupProducts",
    (True, True): "SparseWarpProducts",
}
"""Classes of products, by whether weights are sparse, and whether warps multiply alone."""


_SPARSE_HEADERS = {False: "moe/sparse_turns.cuh", True: "fused_moe/sparse_boxes.cuh"}
"""How sparse weights are multiplied, by whether rows come in boxes."""


_GATHERED = {
    "kernels": "packed_experts",
    "first": "PreparePacked",
    "params": "PackedParams",
    "gated": "GatedRows",
    "parted": "WeighedParts",
    "boxes": (),
    "ctas": 0,
}
_ORDERED = {
    "kernels": "ordered_experts",
    "first": "PrepareOrdered",
    "params": "OrderedParams",
    "gated": "OrderedGatedRows",
    "parted": "OrderedParts",
    "boxes": (),
    "ctas": 0,
}
_TALL = {**_ORDERED, "kernels": "tall_experts", "gated": "TallGatedRows", "parted": "TallParts"}
_HANDED = {**_ORDERED, "kernels": "handed_experts", "gated": "HandedGatedRows", "parted": "HandedParts"}
_BOXED = {**_ORDERED, "kernels": "boxed_experts", "gated": "BoxedGatedRows", "parted": "BoxedParts"}
_MANY = {
    **_ORDERED,
    "kernels": "many_experts",
    "first": "PrepareMany",
    "gated": "ManyGatedRows",
    "parted": "ManyParts",
}
"""What the three launches are made of: where rows are gathered, where they come in order, where weights are folded, too, of many rows and of
few, and where rows come in boxes beside bf16."""


def spell_packed(config: PackedExpertsConfig) -> Spelled:
    """The template of a PackedExpertsConfig, and what fills its holes."""
    values = {
        **_launches(config),
        "header": _SPARSE_HEADERS[config.is_boxed] if config.sparse_group else "",
        "products": _PRODUCTS[bool(config.sparse_group), config.by_warps],
        "block": _CPP_BLOCK[str(config.packing)],
        "row_groups": config.tile_rows // SIDE,
        "k_groups": config.stage_parts if config.by_warps else 1,
        "stage_parts": config.stage_parts,
        "parts": 1 if config.by_warps else config.stage_parts,
        "tile_tokens": config.tile_tokens,
        "stages": config.stages,
        "loaders": config.loaders,
    }
    return Spelled(template="fused_moe/packed_experts.cu.jinja", values=values)


def _launches(config: PackedExpertsConfig) -> dict[str, Any]:
    if not config.ordered:
        return _GATHERED
    if config.is_boxed:
        return _BOXED
    if not config.is_coded:
        return _ORDERED
    if config.tile_tokens in MANY_CTAS:
        return {**_MANY, "ctas": MANY_CTAS[config.tile_tokens]}
    return {**_TALL, "boxes": BOXES[config.tile_tokens]} if config.tile_tokens in BOXES else _HANDED
