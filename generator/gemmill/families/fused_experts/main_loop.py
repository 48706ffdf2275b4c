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


_DENSE = [packing for packing in PACKINGS if not (packing.sparse_group or packing.is_coded)]
_SPARSE = [packing for packing in PACKINGS if packing.sparse_group]
_FOLDED = [packing for packing in PACKINGS if packing.is_coded]


def _of(packings: list[Packing], stages: Mapping[int, int]) -> dict[Packing, Mapping[int, int]]:
    return dict.fromkeys(packings, stages)


# Constants of gathered rows are from times of Qwen3-Next, DeepSeek V3 and V4 Flash, of boxed ones from whole calls of these (H200, 2026-11-23). Those of
# codes, tiles of 16 to 224 rows, are fitted to eight random layers, of 48 rows to six others, those of tiles of 8 rows in order to 13 by
# tools/fit_experts.py (H200, 2026-11-28; docs/notes/fused_experts.md). Wide tiles are half as many, so fewer multiprocessors read. Where rows are put in order, the first launch takes longer.
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
    tile_ps={16: 584, 32: 440, 64: 560, 128: 1300},
    begin_ns=12000,
    code_ps={16: 6280, 32: 6280, 64: 6280, 128: 6280},
    coders=8,
)
_BY_WARPS = replace(
    _BY_GROUPS,
    products=("RowWarpProducts", "RowWarpProducts"),
    by_warps=True,
    stages=_of(_DENSE, {8: 7, 16: 5}) | _of(_SPARSE, {8: 8, 16: 5}),
    row_groups={8: 1, 16: 1},
    tile_ps={8: 300, 16: 370},
    code_ps={},
)
LOOPS: Mapping[ExpertLoop, tuple[Body, ...]] = {
    ExpertLoop.GATHERED: (_BY_WARPS, _BY_GROUPS),
    ExpertLoop.WIDE: (
        replace(
            _BY_WARPS,
            stages=_of(_DENSE, {8: 4}) | _of(_SPARSE, {8: 5}),
            row_groups={8: 2},
            tile_ps={8: 265},
            begin_ns=15000,
        ),
    ),
    ExpertLoop.PERSISTENT: (
        Body(
            header="persistent_decode",
            product="DecodeMm<Products, cutlass::bfloat16_t, {epilogue}>",
            epilogues=("DecodeGatedRows", "DecodeParts"),
            products=("WarpgroupProducts", ""),
            stages={x: {8: 4 if x.format == NVFP4 else 5} for x in _FOLDED},  # tables take the room of a stage
            row_groups={8: 2},
            tile_ps={8: 262},
            begin_ns=26700,
            code_ps={8: 870},
            coders=1,
        ),
        Body(
            header="persistent_prefill",
            first="PreparePrefill",
            product="PrefillMm<{block}, kTokens, kStages, {epilogue}>",
            epilogues=("PrefillGatedRows", "PrefillParts"),
            stages=_of(_FOLDED, {32: 7, 48: 6, 112: 8, 224: 4}),
            row_groups={32: 2, 48: 2, 112: 2, 224: 2},
            tile_ps={32: 309, 48: 322, 112: 447, 224: 578},
            begin_ns=28400,
            code_ps={32: 3270, 48: 3000, 112: 490, 224: 2110},
        ),
    ),
    ExpertLoop.BOXED: (
        Body(
            header="persistent_upcast",
            sparse_header="fused_experts/sparse_upcast.cuh",
            product="UpcastMm<Products, cutlass::bfloat16_t, {epilogue}, kRowGroups>",
            epilogues=("UpcastGatedRows", "UpcastParts"),
            products=("WarpgroupProducts", "WarpgroupProducts"),
            stages=_of(_DENSE + _SPARSE, {16: 7, 64: 6}),
            row_groups={16: 2, 64: 4},
            tile_ps={16: 225, 64: 305},
            begin_ns=23500,
        ),
    ),
}
"""The bodies of each main loop. A tile is of one of them."""
