"""Spelling a config in CUDA C++: the template, and the values of its holes."""

from gemmill.families.blockscaled.config import FewConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, Group, ManyLoop, PackedLoop, Sharing
from gemmill.families.blockscaled.pairs import WEIGHT_PAIRS, Pair
from gemmill.family import Spelled
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4

_CPP_BLOCK = {
    Pair.FLOATS_NVFP4: "Fp4Block<NvFp4>",
    Pair.FLOATS_MXFP4: "Fp4Block<MxFp4>",
    Pair.E4M3_MXFP4: "FoldedBlock<MxFp4Folded>",
    Pair.E4M3_NVFP4: "FoldedBlock<NvFp4Rounded>",
}
"""Class of a block, in kernels/gemm/widen_e2m1.cuh or fold_e2m1.cuh."""
_CPP_PACKED = {
    PackedLoop.TILE: ("packed/packed_launch", "PackedMm"),
    PackedLoop.BATCHED: ("packed/batched_mm", "BatchedMm"),
    PackedLoop.STAYS: ("packed/packed_persistent_mm", "PackedPersistentMm"),
}
"""Header and class of a body."""


def spell_packed(config: PackedConfig) -> Spelled:
    """The template, and the values of its holes."""
    d, warps = config.design, config.design.group is Group.WARP
    block = _CPP_BLOCK[config.pair]
    header, body = _CPP_PACKED[d.main_loop]
    values = {
        "header": header,
        "body": body,
        "products": "WarpProducts" if warps else "WarpgroupProducts",
        "block": block.replace("FoldedBlock", "FoldedHalf") if warps else block,
        "part_columns": config.part_columns,
        "stage_parts": config.stage_columns // config.part_columns,
        "d_type": config.out_dtype.cutlass_type,
        "row_groups": d.row_groups,
        "tile_m": d.tile_m,
        "k_groups": d.k_groups,
        "blocks": d.blocks,
        "stages": d.stages,
        "grouped": str(config.grouped).lower(),
    }
    return Spelled(template="blockscaled/packed_mm.cu.jinja", values=values)


_CPP_CODES = {NVFP4: "NvFp4Codes", MXFP4: "MxFp4Codes", MXFP6: "MxFp6Codes", MXFP8: "MxFp8Codes"}
"""Classes of codes in kernels/blockscaled/shared/operands.cuh, which differ by where their scales lie."""
_CPP_WORDS = {NVFP4: "NvFp4Words", MXFP4: "MxFp4Words"}
_CPP_PIECES = {NVFP4: "NvFp4Piece", MXFP4: "MxFp4Piece", MXFP6: "MxFp6Piece", MXFP8: "MxFp8Piece"}
"""Classes of pieces in kernels/blockscaled/shared/shared_pieces.cuh."""


def _operands(config: ManyConfig | FewConfig) -> dict[str, str]:
    """Both operands' types in memory and on the tensor core, and the factors of sums."""
    pair, folded = config.pair, config.is_folded
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


_CPP_UPCAST = {
    FewLoop.REGISTERS: (
        "few_rows/skinny_mm",
        "SkinnyMm<{a_type}, {b_type}, {x_type}, {d_type}, {tile_m}, {warps}, Factors::{factors}, {ctas}>",
    ),
    FewLoop.RING: (
        "few_rows/skinny_cp_async_mm",
        "SkinnyCpAsyncMm<{a_type}, {b_type}, {d_type}, {tile_m}, {warps}, {stages}, Factors::{factors}, {ctas}>",
    ),
    FewLoop.TMA: ("few_rows/skinny_tma_mm", "SkinnyTmaMm<{b_type}, {d_type}, {tile_m}, {warps}, {stages}, {ctas}>"),
    ManyLoop.PIECES: (
        "many_rows/general_mm",
        "GeneralMm<{a_type}, {b_type}, {x_type}, {d_type}, {tile_m}, Factors::{factors}>",
    ),
    ManyLoop.WORDS: ("many_rows/large_mm", "LargeMm<{words}, {d_type}, {tile_m}, {tile_n}>"),
    ManyLoop.AHEAD: ("many_rows/large_prefetch_mm", "LargePrefetchMm<{words}, {d_type}, {tile_m}, {tile_n}, {stages}>"),
}
"""Header and class of a main loop."""


def _spell(loop: FewLoop | ManyLoop, values: dict[str, str | int]) -> Spelled:
    header, kernel = _CPP_UPCAST[loop]
    return Spelled(
        template="blockscaled/upcast_mm.cu.jinja", values={"header": header, "kernel": kernel.format(**values)}
    )


def spell_few(config: FewConfig) -> Spelled:
    """The template, and the values of its holes."""
    d, operands, format = config.design, _operands(config), config.pair.b_format
    if d.main_loop is not FewLoop.REGISTERS:
        # pieces of nvfp4 are f16, and lie swizzled or behind their codes
        of = str(config.prepacked).lower() if format == NVFP4 else operands["x_type"]
        in_order = d.main_loop is FewLoop.TMA and format == MXFP4
        operands["b_type"] = "MxFp4InOrder" if in_order else f"{_CPP_PIECES[format]}<{of}>"
        operands["a_type"] = "Plain" if config.pair.a_format is None else operands["b_type"]
    elif config.in_words:
        operands["a_type"] = operands["b_type"] = f"PieceOfRow<{_CPP_WORDS[format]}>"
    else:
        operands |= {name: f"InOrder<{operands[name]}>" for name in ("a_type", "b_type")}
    return _spell(
        d.main_loop, {"warps": d.warps, "stages": d.stages, "ctas": config.ctas_of_sm, "tile_m": d.tile_m, **operands}
    )


def spell_many(config: ManyConfig) -> Spelled:
    """The template, and the values of its holes."""
    d, words = config.design, _CPP_WORDS.get(config.pair.b_format, "")
    tile = {"tile_m": d.tile_mn[0], "tile_n": d.tile_mn[1]}
    return _spell(d.main_loop, {"stages": d.stages, "words": words, **tile, **_operands(config)})


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
    """The template, and the values of its holes."""
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
        "tile_shape_mnk": config.design.tile_shape_mnk,
        "cluster_shape_mnk": config.design.cluster_shape_mnk,
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
    if config.arch is Arch.SM120F:
        return _CPP_SM120[config.design.sharing], "collective::EpilogueScheduleAuto"
    sms = "1Sm" if config.design.sharing is Sharing.ONE_SM else "2Sm"
    kind = "Mxf8f6f4" if config.mixes else "Nvf4" if config.pair is Pair.NVFP4 else "Mxf4"
    return f"KernelTmaWarpSpecialized{sms}{kind}Sm100", f"TmaWarpSpecialized{sms}"
