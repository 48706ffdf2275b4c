"""Main loops of packed weights: one table, which spelling, rules, selections and the model read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gemmill.families.fused_experts.packing import PACKINGS, Packing
from gemmill.vocab.format import NVFP4


class ExpertLoop(StrEnum):
    """The path of an expert's rows to the warps that multiply them."""

    GATHERED = "gathered"
    """by their numbers: kernels/fused_experts/packed_experts.cuh"""
    WIDE = "wide"
    """the same; eight warps take 128 rows of weights, where four take 64"""
    PERSISTENT = "persistent"
    """in the order of experts, as codes; epilogue warps finish tiles: persistent_decode.cuh, and of more rows persistent_prefill.cuh"""
    BOXED = "boxed"
    """in that order, in TMA boxes of eight rows, of which a tile loads and multiplies those that it has: persistent_upcast.cuh"""


@dataclass(frozen=True, kw_only=True)
class Body:
    """A kernel of a main loop: the template's values, its tiles by an expert's rows, and the model's constants."""

    header: str
    """File in kernels/fused_experts."""
    sparse_header: str = ""
    """The header of products with 2:4 sparse weights."""
    launch: str = "launch_ordered_experts"
    """Function of the launches."""
    first: str = "PrepareOrdered"
    """Class of the first launch."""
    params: str = "OrderedParams"
    """Class of the first launch's parameters."""
    product: str
    """Type of a product, of a `block`'s class and of an `epilogue`'s."""
    epilogues: tuple[str, str]
    """Classes of the epilogues of both products."""
    products: tuple[str, str] = ("", "")
    """Classes of products of 64 rows of dense and of sparse weights; empty where the body has its own, or none."""
    by_warps: bool = False
    """Whether warps multiply alone, few tokens each."""
    stages: Mapping[Packing, Mapping[int, int]]
    """Stages of each tile that there is."""
    row_groups: Mapping[int, int]
    """Groups on different rows of weights, 64 rows each."""
    tile_ps: Mapping[int, int]
    """Picoseconds for 1,024 bytes of weights."""
    begin_ns: int
    """Nanoseconds of three launches of few tiles."""
    code_ps: Mapping[int, int] = field(default_factory=dict)
    """Picoseconds in which a warp codes an element of the first product's results, where those become codes."""
    coders: int = 0
    """Warps that code a tile's rows; 0 for one each."""
    alone_ps: Mapping[int, int] = field(default_factory=dict)
    """Picoseconds of a column along K in a tile whose multiprocessor has no other."""
    column_ps: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Picoseconds of a column along K, of a tile of dense weights with eight rows and of a full one. The model counts waves of such tiles."""


_DENSE = [packing for packing in PACKINGS if not (packing.sparse_group or packing.is_coded)]
_SPARSE = [packing for packing in PACKINGS if packing.sparse_group]
_FOLDED = [packing for packing in PACKINGS if packing.is_coded]


def _of(packings: list[Packing], stages: Mapping[int, int]) -> dict[Packing, Mapping[int, int]]:
    return dict.fromkeys(packings, stages)


# Constants of tiles of nvfp4 are fitted to 87 calls of 15 layers, those of mxfp4 x e4m3 to 80 of 22, persistent ones of 8 and 16 rows to 44 of
# ten (H200, 2026-11-27 to 2026-11-29; docs/notes/fused_experts.md). Gathered tiles of 32 to 128 rows have those of 2026-11-23, and while alone take as long as tiles in order.
# Wide tiles are half as many, so fewer multiprocessors read. Where rows are put in order, the first launch takes longer. Columns of boxed
# tiles are fitted to 36 calls of ten layers, ten of these calls of tiles of 128 rows (H200, 2026-11-28 and 2026-11-29).
_BY_GROUPS = Body(
    header="packed_experts",
    launch="launch_packed_experts",
    first="PreparePacked",
    params="PackedParams",
    product="gemmill::moe::PackedGroupedMm<Products, cutlass::bfloat16_t, kRowGroups, kGroups, kLoaders, {epilogue}>",
    epilogues=("GatedRows", "WeighedParts"),
    products=("WarpgroupProducts", ""),
    stages=_of(_DENSE, {32: 5, 64: 4, 128: 5}) | _of(_FOLDED, {16: 8, 32: 6, 64: 5, 128: 6}),
    row_groups={16: 2, 32: 2, 64: 2, 128: 2},
    tile_ps={16: 413, 32: 440, 64: 560, 128: 1300},
    begin_ns=12000,
    alone_ps={32: 2690, 64: 2690, 128: 2690},
    code_ps={16: 8000, 32: 6280, 64: 6280, 128: 6280},
    coders=8,
)
_BY_WARPS = replace(
    _BY_GROUPS,
    products=("RowWarpProducts", "RowWarpProducts"),
    by_warps=True,
    stages=_of(_DENSE, {8: 7, 16: 5}) | _of(_SPARSE, {8: 8, 16: 5}),
    row_groups={8: 1, 16: 1},
    tile_ps={8: 371, 16: 458},
    alone_ps={8: 1490, 16: 1490},
    code_ps={},
)
LOOPS: Mapping[ExpertLoop, tuple[Body, ...]] = {
    ExpertLoop.GATHERED: (_BY_WARPS, _BY_GROUPS),
    ExpertLoop.WIDE: (
        replace(
            _BY_WARPS,
            stages=_of(_DENSE, {8: 4}) | _of(_SPARSE, {8: 5}),
            row_groups={8: 2},
            tile_ps={8: 294},
            alone_ps={8: 2150},
            begin_ns=13600,
        ),
    ),
    ExpertLoop.PERSISTENT: (
        Body(
            header="persistent_decode",
            product="DecodeMm<Products, cutlass::bfloat16_t, {epilogue}>",
            epilogues=("DecodeGatedRows", "DecodeParts"),
            products=("WarpgroupProducts", ""),
            stages={
                x: {8: 4 if x.format == NVFP4 else 5, 16: 3 if x.format == NVFP4 else 4} for x in _FOLDED
            },  # tables take the room of a stage
            row_groups={8: 2, 16: 2},
            tile_ps={8: 256, 16: 273},
            alone_ps={8: 1500, 16: 5300},
            begin_ns=27050,
        ),
        Body(
            header="persistent_prefill",
            first="PreparePrefill",
            product="PrefillMm<{block}, kTokens, kStages, {epilogue}>",
            epilogues=("PrefillGatedRows", "PrefillParts"),
            stages=_of(_FOLDED, {32: 7, 48: 6, 64: 5, 112: 8, 224: 4}),
            row_groups=dict.fromkeys((32, 48, 64, 112, 224), 2),
            tile_ps={32: 323, 48: 318, 64: 401, 112: 436, 224: 515},
            alone_ps={32: 826, 48: 853, 64: 880, 112: 927},  # that of 64 rows lies between its neighbours
            begin_ns=23100,
            code_ps={32: 3408, 48: 1765, 64: 1610, 112: 2755, 224: 3747},
        ),
    ),
    ExpertLoop.BOXED: (
        Body(
            header="persistent_upcast",
            sparse_header="fused_experts/sparse_upcast.cuh",
            product="UpcastMm<Products, cutlass::bfloat16_t, {epilogue}, kRowGroups>",
            epilogues=("UpcastGatedRows", "UpcastParts"),
            products=("WarpgroupProducts", "WarpgroupProducts"),
            stages=_of(_DENSE, {16: 7, 32: 5, 64: 6, 128: 4}) | _of(_SPARSE, {16: 7, 64: 6}),
            row_groups={16: 2, 32: 2, 64: 4, 128: 3},
            tile_ps={16: 300, 64: 373},
            alone_ps={16: 3170, 64: 4850},
            column_ps={32: (3450, 5080), 64: (4550, 7500), 128: (3400, 9500)},
            begin_ns=20500,
        ),
    ),
}
"""The bodies of each main loop. A tile is of one of them."""
