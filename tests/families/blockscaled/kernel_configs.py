"""One config of each main loop, of which tests change fields."""

from gemmill.families.blockscaled.config import (
    Epilogue,
    FewConfig,
    ManyConfig,
    Operands,
    PackedConfig,
    PairConfig,
)
from gemmill.families.blockscaled.design import (
    FewDesign,
    FewLoop,
    Group,
    ManyDesign,
    ManyLoop,
    PackedDesign,
    PackedLoop,
    PairDesign,
    Sharing,
)
from gemmill.families.blockscaled.pairs import (
    CODE_PAIRS,
    Pair,
)
from gemmill.vocab import Arch, DType
from making import changed

BF16, F16 = Epilogue(out_dtype=DType.BF16), Epilogue(out_dtype=DType.F16)
GOOD = PackedConfig(
    operands=Operands(pair=Pair.FLOATS_NVFP4, prepacked=True),
    design=PackedDesign(tile_m=16, k_groups=2, blocks=1, stages=8),
    epilogue=BF16,
)
WARPS = changed(GOOD, group=Group.WARP, row_groups=4, stages=5)
WIDENED = ManyConfig(operands=Operands(pair=Pair.NVFP4), design=ManyDesign(tile_mn=(128, 128)), epilogue=F16)
FEW = FewConfig(operands=Operands(pair=Pair.MXFP4), design=FewDesign(tile_m=8, warps=4), epilogue=F16)
RING = changed(FEW, main_loop=FewLoop.RING, stages=3)
TMA = changed(RING, pair=Pair.FLOATS_MXFP8, prepacked=True, main_loop=FewLoop.TMA, stages=2)
MANY = changed(WIDENED, main_loop=ManyLoop.WORDS, tile_mn=(64, 256), out_dtype=DType.BF16)
AHEAD = changed(MANY, main_loop=ManyLoop.AHEAD, stages=2)
PAIRED = PairConfig(
    operands=Operands(pair=Pair.MXFP8_MXFP6),
    design=PairDesign(tile_shape_mnk=(256, 128, 128), cluster_shape_mnk=(2, 1, 1), sharing=Sharing.TWO_SM),
    epilogue=BF16,
    arch=Arch.SM100A,
)
NARROW_PAIR = changed(
    PAIRED,
    tile_shape_mnk=(128, 64, 128),
    cluster_shape_mnk=(1, 1, 1),
    sharing=Sharing.PINGPONG,
    arch=Arch.SM120F,
)
FOLDED = changed(GOOD, pair=Pair.E4M3_MXFP4, stages=5)
FOLDED_WARPS = changed(FOLDED, group=Group.WARP, row_groups=1, tile_m=8, k_groups=4, stages=6)
BATCHED = changed(FOLDED, tile_m=256, k_groups=1, main_loop=PackedLoop.BATCHED, splits=2)
STAYING = changed(BATCHED, main_loop=PackedLoop.STAYS, splits=1)
CODES = CODE_PAIRS
