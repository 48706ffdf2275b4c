"""Spelling a config in CUDA C++: which template, and what fills its holes."""

from gemmill.families.blockscaled.config import (
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PackedConfig,
    PairConfig,
    Sharing,
    TmaFewConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.family import Spelled
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4

_CPP_BLOCK = {
    Pair.FLOATS_NVFP4: "Fp4Block<NvFp4>",
    Pair.FLOATS_MXFP4: "Fp4Block<MxFp4>",
    Pair.E4M3_MXFP4: "FoldedBlock<MxFp4Folded>",
    Pair.E4M3_NVFP4: "FoldedBlock<NvFp4Rounded>",
}
"""Class of a block, in kernels/blockscaled/widen_e2m1.cuh or fold_e2m1.cuh."""


def spell_packed(config: PackedConfig) -> Spelled:
    """The template, and what fills the holes."""
    warps = config.group is Group.WARP
    block = _CPP_BLOCK[config.pair]
    batched = isinstance(config, FoldedConfig) and config.batched
    header, body = ("batched_mm", "BatchedMm") if batched else ("packed_mm", "PackedMm")
    values = {
        "header": "staying_mm" if config.stays else header,
        "body": "StayingMm" if config.stays else body,
        "launch": "launch_staying_mm" if config.stays else "launch_packed_mm",
        "products": "WarpProducts" if warps else "WarpgroupProducts",
        "block": block.replace("FoldedBlock", "FoldedHalf") if warps else block,
        "part_columns": config.part_columns,
        "stage_parts": config.stage_columns // config.part_columns,
        "d_type": config.out_dtype.cutlass_type,
        "row_groups": config.row_groups,
        "tile_m": config.tile_m,
        "k_groups": config.k_groups,
        "blocks": config.blocks,
        "stages": config.stages,
        "grouped": str(config.grouped).lower(),
    }
    return Spelled(template="blockscaled/packed_mm.cu.jinja", values=values)


_CPP_CODES = {NVFP4: "NvFp4Codes", MXFP4: "MxFp4Codes", MXFP6: "MxFp6Codes", MXFP8: "MxFp8Codes"}
"""Classes of codes in kernels/blockscaled/operands.cuh, which differ by where their scales lie."""


def spell_widened(config: WidenedConfig) -> Spelled:
    """The template, and what fills the holes."""
    values = {"tile": config.tile, **_operands(config)}
    return Spelled(template="blockscaled/widened_mm.cu.jinja", values=values)


def _operands(config: WidenedConfig | FewConfig) -> dict[str, str]:
    """What both operands are and become, and the factors of sums."""
    pair, folded = config.pair, config.pair in FOLDED_PAIRS
    halves = pair in WEIGHT_PAIRS and config.out_dtype is DType.F16
    if pair.a_format is not None:
        a_type, layout = f"{_CPP_CODES[pair.a_format]}<Swizzled>", "Swizzled"
    else:
        a_type, layout = "Numbers" if folded else "Plain", "BehindCodes" if folded or config.prepacked else "InRows"
    return {
        "x_type": "F16" if halves else "Bf16",
        "a_type": a_type,
        "b_type": f"{_CPP_CODES[pair.b_format]}<{layout}>",
        "d_type": config.out_dtype.cutlass_type,
        "factors": "OfGroups" if config.grouped else "OfRows" if layout == "BehindCodes" else "OfTensor",
    }


_CPP_WORDS = {NVFP4: "NvFp4Words", MXFP4: "MxFp4Words"}


_CPP_PIECES = {NVFP4: "NvFp4Piece", MXFP4: "MxFp4Piece", MXFP6: "MxFp6Piece", MXFP8: "MxFp8Piece"}
"""Classes of pieces in kernels/blockscaled/ring_pieces.cuh."""


def spell_few(config: FewConfig) -> Spelled:
    """The template, and what fills the holes."""
    operands = _operands(config)
    if config.stages:
        return _spell_ring(config, operands)
    if config.in_words:
        operands["a_type"] = operands["b_type"] = f"PieceOfRow<{_CPP_WORDS[config.pair.b_format]}>"
    else:
        operands |= {name: f"InOrder<{operands[name]}>" for name in ("a_type", "b_type")}
    values = {"tile_m": config.tile_m, "warps": config.warps, "ctas": config.ctas_of_sm, **operands}
    return Spelled(template="blockscaled/widened_few_mm.cu.jinja", values=values)


def _spell_ring(config: FewConfig, operands: dict[str, str]) -> Spelled:
    """Pieces of both operands: nvfp4's are f16, and lie swizzled or behind their codes."""
    format = config.pair.b_format
    of = str(config.prepacked).lower() if format == NVFP4 else operands["x_type"]
    piece = f"{_CPP_PIECES[format]}<{of}>"
    values = {
        "a_type": "Plain" if config.pair.a_format is None else piece,
        "b_type": piece,
        "d_type": operands["d_type"],
        "factors": operands["factors"],
        "tile_m": config.tile_m,
        "warps": config.warps,
        "stages": config.stages,
        "ctas": config.ctas_of_sm,
    }
    return Spelled(template="blockscaled/ring_few_mm.cu.jinja", values=values)


def spell_tma_few(config: TmaFewConfig) -> Spelled:
    """The template, and what fills the holes: pieces lie behind one another in order."""
    format = config.pair.b_format
    wide = "F16" if config.out_dtype is DType.F16 else "Bf16"
    of = "true" if format == NVFP4 else wide
    values = {
        "b_type": "MxFp4InOrder" if format == MXFP4 else f"{_CPP_PIECES[format]}<{of}>",
        "d_type": config.out_dtype.cutlass_type,
        "tile_m": config.tile_m,
        "warps": config.warps,
        "stages": config.stages,
        "ctas": config.ctas_of_sm,
    }
    return Spelled(template="blockscaled/tma_few_mm.cu.jinja", values=values)


def spell_many(config: ManyConfig) -> Spelled:
    """The template, and what fills the holes."""
    values = {
        "format": _CPP_WORDS[config.pair.b_format],
        "d_type": config.out_dtype.cutlass_type,
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
    }
    if config.stages:
        return Spelled(template="blockscaled/ahead_many_mm.cu.jinja", values=values | {"stages": config.stages})
    return Spelled(template="blockscaled/widened_many_mm.cu.jinja", values=values)


_CPP_OPERAND = {
    NVFP4: "cutlass::nv_float4_t<cutlass::float_e2m1_t>",
    MXFP4: "cutlass::mx_float4_t<cutlass::float_e2m1_t>",
    MXFP6: "cutlass::mx_float6_t<cutlass::float_e3m2_t>",
    MXFP8: "cutlass::mx_float8_t<cutlass::float_e4m3_t>",
}
_CPP_SM120 = {
    Sharing.COOPERATIVE: "KernelTmaWarpSpecializedCooperative",
    Sharing.PINGPONG: "KernelTmaWarpSpecializedPingpong",
}


def spell_pair(config: PairConfig) -> Spelled:
    """The template, and what fills the holes."""
    a_format, b_format = config.pair.a_format, config.pair.b_format
    assert a_format is not None  # a rule
    mainloop, epilogue = _schedules(config)
    values = {
        "arch_tag": config.arch.cutlass_tag,
        "a_type": _CPP_OPERAND[a_format],
        "b_type": _CPP_OPERAND[b_format],
        "d_type": config.out_dtype.cutlass_type,
        "alignment_a": _alignment(a_format, config.mixes),
        "alignment_b": _alignment(b_format, config.mixes),
        "tile_shape_mnk": config.tile_shape_mnk,
        "cluster_shape_mnk": config.cluster_shape_mnk,
        "is_narrow": config.is_narrow,
        "mainloop_schedule": f"cutlass::gemm::{mainloop}",
        "epilogue_schedule": f"cutlass::epilogue::{epilogue}",
    }
    return Spelled(template="blockscaled/pair_mm.cu.jinja", values=values)


def _alignment(format: Format, mixes: bool) -> int:
    """The number of codes that rows begin at multiples of: 16 bytes, or 128 codes where TMA makes a byte of each smaller
    code."""
    return 128 if mixes and format.code.bits < 8 else 128 // format.code.bits


def _schedules(config: PairConfig) -> tuple[str, str]:
    """The schedules of main loop and epilogue."""
    if config.arch is Arch.SM120A:
        return _CPP_SM120[config.sharing], "collective::EpilogueScheduleAuto"
    sms = "1Sm" if config.sharing is Sharing.ONE_SM else "2Sm"
    kind = "Mxf8f6f4" if config.mixes else "Nvf4" if config.pair is Pair.NVFP4 else "Mxf4"
    return f"KernelTmaWarpSpecialized{sms}{kind}Sm100", f"TmaWarpSpecialized{sms}"
