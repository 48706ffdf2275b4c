"""Rules that configs break, and fields that reach their text."""

from collections.abc import Callable

import pytest

from families.blockscaled.kernel_configs import (
    AHEAD,
    BATCHED,
    FEW,
    FOLDED,
    FOLDED_WARPS,
    GOOD,
    MANY,
    NARROW_PAIR,
    PAIRED,
    RING,
    STAYING,
    TMA,
    WARPS,
    WIDENED,
)
from gemmill.emit import emit
from gemmill.families.blockscaled.config import (
    AnyConfig,
)
from gemmill.families.blockscaled.design import (
    FewLoop,
    Group,
    PackedLoop,
    Sharing,
)
from gemmill.families.blockscaled.pairs import (
    Pair,
)
from gemmill.registry import REGISTRY
from gemmill.space.filters import fields_of
from gemmill.space.names import to_name
from gemmill.vocab import Arch, DType
from making import changed


@pytest.mark.parametrize(
    ("change", "rule", "reason"),
    [
        ({"arch": Arch.SM100A}, "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        ({"pair": Pair.MXFP8}, "operands", "mxfp8xmxfp8 is no pair of 16-bit or e4m3 numbers and 4-bit weights"),
        ({"tile_m": 12}, "tile", "tile of 12 rows: WGMMA takes 8 to 256 columns in steps of 8"),
        ({"blocks": 3}, "stage", "stages of 384 columns: packed weights have multiples of 256"),
        ({"stages": 18}, "memory", "18 stages of 13312 bytes do not fit in 230400"),
        ({"tile_m": 128, "stages": 3}, "memory", "partial sums of 135168 bytes reuse the stages, which have 125952"),
        (
            {"group": Group.WARP, "tile_m": 40},
            "rows",
            "tile of 40 rows: the sums of 64 weights by more than 32 do not fit in a warp's registers",
        ),
        ({"row_groups": 4}, "rows", "256 rows of weights in a tile: two groups of 128 threads have 128"),
        (
            {"group": Group.WARP, "row_groups": 3},
            "rows",
            "192 rows of weights in a tile: it has 64, 128 or 256",
        ),
        ({"out_dtype": DType.F16}, "operands", "results in f16: activations and results are bf16"),
        (
            {"grouped": True},
            "operands",
            "floatsxnvfp4 with scales in groups: numbers of 16 bits have none",
        ),
        ({"splits": 9}, "splits", "9 slices of K: a cluster has 1 to 8 CTAs"),
    ],
)
def test_rules(change: dict, rule: str, reason: str) -> None:
    status = REGISTRY.check(changed(GOOD, **change))
    assert (status.rule, status.reason) == (rule, reason)


@pytest.mark.parametrize(
    ("config", "rule", "reason"),
    [
        (changed(WIDENED, arch=Arch.SM120F), "hopper", "sm120f has no WGMMA: codes are widened on sm90a"),
        (changed(WIDENED, tile_mn=(96, 96)), "many", "tile of 96 x 96: it is 64 x 64 or 128 x 128"),
        (changed(WIDENED, tile_mn=(64, 128)), "many", "tile of 64 x 128: it is 64 x 64 or 128 x 128"),
        (changed(WIDENED, splits=2), "many", "2 slices of K: pieces are multiplied by one CTA"),
        (
            changed(WIDENED, pair=Pair.FLOATS_MXFP4),
            "packed",
            "floatsxmxfp4 with results in f16: products may not fit f16 without bases, which packed weights have",
        ),
        (changed(FEW, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (
            changed(MANY, pair=Pair.MXFP8),
            "words",
            "mxfp8xmxfp8: codes are widened a step ahead where both operands have four bits",
        ),
        (
            changed(FEW, pair=Pair.FLOATS_MXFP4),
            "packed",
            "floatsxmxfp4 with results in f16: products may not fit f16 without bases, which packed weights have",
        ),
        (
            changed(FEW, pair=Pair.E4M3_NVFP4),
            "rounds",
            "e4m3xnvfp4 is rounded to e4m3: it is folded, not widened",
        ),
        (changed(FEW, tile_m=24), "few", "tile of 24 rows: registers are for 8 or 16"),
        (
            changed(RING, stages=1),
            "stages",
            "1 stage of a warp: one is filled while another is read, so it has 2 or more",
        ),
        (changed(RING, stages=11), "stages", "11 stages of 4 warps take 253440 bytes, and 231424 are there"),
        (
            changed(RING, pair=Pair.FLOATS_NVFP4),
            "stages",
            "floatsxnvfp4 in stages: weights of a checkpoint come straight to registers",
        ),
        (
            changed(RING, pair=Pair.FLOATS_MXFP4, prepacked=True),
            "stages",
            "floatsxmxfp4 in stages: pieces are of 4-bit codes on both sides, or of packed nvfp4, mxfp6 and mxfp8",
        ),
        (
            changed(TMA, pair=Pair.FLOATS_MXFP4, out_dtype=DType.BF16),
            "packed",
            "floatsxmxfp4 with results in bf16: its weights are not packed in rows",
        ),
        (
            changed(TMA, pair=Pair.MXFP8),
            "packed",
            "mxfp8xmxfp8 with results in f16: its weights are not packed in rows",
        ),
        (
            changed(STAYING, tile_m=128),
            "stays",
            "tile of 128 rows that CTAs take in turns: 256 rows, of one group along K and one block in a stage",
        ),
        (
            changed(STAYING, splits=2),
            "stays",
            "2 slices of K: CTAs that take tiles in turns are in no cluster",
        ),
        (
            changed(STAYING, grouped=True),
            "registers",
            "sums of 512 tokens: 1 groups along K have registers for 256",
        ),
        (changed(TMA, tile_m=24), "few", "tile of 24 rows: registers are for 8, 16 or 32"),
        (changed(TMA, warps=6), "few", "6 warps: a CTA has 4 or 8"),
        (
            changed(TMA, stages=1),
            "stages",
            "1 stage of a warp: one is filled while another is read, so it has 2 or more",
        ),
        (
            changed(TMA, pair=Pair.FLOATS_NVFP4, prepacked=False),
            "stages",
            "floatsxnvfp4 by TMA: it brings packed weights alone",
        ),
        (changed(TMA, stages=6), "stages", "6 stages of 4 warps take 271552 bytes, and 232448 are there"),
        (changed(TMA, splits=9), "splits", "9 slices of K: a cluster has 1 to 8 CTAs"),
        (changed(TMA, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (changed(MANY, tile_mn=(96, 256)), "many", "tile of 96 x 256: it is 64 or 128 by 128 or 256"),
        (
            changed(MANY, tile_mn=(128, 256), splits=2),
            "many",
            "partial sums of 135168 bytes reuse the stages, which have 98304",
        ),
        (
            changed(AHEAD, stages=1),
            "ahead",
            "1 stage: one is written while another is multiplied, so it has 2 or more",
        ),
        (changed(AHEAD, stages=3), "ahead", "3 stages of 40960 bytes do not fit in 114176"),
        (changed(FEW, warps=6), "few", "6 warps: a CTA has 4, or 8 of 4-bit codes on both sides"),
        (
            changed(FEW, pair=Pair.MXFP8, warps=8),
            "few",
            "8 warps: a CTA has 4, or 8 of 4-bit codes on both sides",
        ),
        (
            changed(WIDENED, pair=Pair.FLOATS_NVFP4, out_dtype=DType.BF16, prepacked=True),
            "packed",
            "floatsxnvfp4 with results in bf16: its weights are not packed in rows",
        ),
        (
            changed(WIDENED, grouped=True, tile_mn=(64, 64)),
            "scaled_in_groups",
            "nvfp4xnvfp4 with scales in groups: only mxfp4_fp8_mm takes those, by tiles of 64 x 64",
        ),
        (
            changed(FEW, pair=Pair.E4M3_MXFP4, grouped=True),
            "scaled_in_groups",
            "e4m3xmxfp4 with scales in groups: only mxfp4_fp8_mm takes those, by tiles of 64 x 64",
        ),
        (
            changed(WIDENED, pair=Pair.E4M3_MXFP4, grouped=True),
            "scaled_in_groups",
            "tile of 128 with scales in groups: registers hold its sums once, not twice",
        ),
        (
            changed(WIDENED, pair=Pair.E4M3_NVFP4),
            "rounds",
            "e4m3xnvfp4 is rounded to e4m3: it is folded, not widened",
        ),
        (changed(FOLDED, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (
            changed(FOLDED, pair=Pair.E4M3_NVFP4, grouped=True),
            "operands",
            "e4m3xnvfp4 with scales in groups: its base is of rows",
        ),
        (
            changed(FOLDED, tile_m=256, stages=2),
            "registers",
            "sums of 256 tokens: 2 groups along K have registers for 128",
        ),
        (
            changed(BATCHED, tile_m=64),
            "together",
            "quads of a tile of 64 rows added up together: only one group along K of more than 64, with scales of rows",
        ),
        (
            changed(BATCHED, pair=Pair.FLOATS_NVFP4),
            "together",
            "quads of a tile of 256 rows added up together: only one group along K of more than 64, with scales of rows",
        ),
        (changed(FOLDED, blocks=3), "stage", "stages of 768 columns: packed weights have multiples of 256"),
        (
            changed(FOLDED_WARPS, k_groups=1),
            "stage",
            "stages of 64 columns: blocks of weights have 128",
        ),
        (changed(PAIRED, arch=Arch.SM90A), "blackwell", "sm90a shares a tile as none, not as 2sm"),
        (changed(PAIRED, arch=Arch.SM120F), "blackwell", "sm120f shares a tile as cooperative, pingpong, not as 2sm"),
        (changed(PAIRED, pair=Pair.FLOATS_NVFP4), "codes", "floatsxnvfp4 has activations without scales"),
        (changed(PAIRED, tile_shape_mnk=(128, 128, 128)), "pair_tile", "tile of 128 rows: 2sm multiplies 256"),
        (
            changed(PAIRED, tile_shape_mnk=(256, 96, 128)),
            "pair_tile",
            "tile of 96 columns: the instruction takes 64, 128, 192 or 256",
        ),
        (
            changed(PAIRED, pair=Pair.NVFP4),
            "pair_tile",
            "128 columns in a step: nvfp4xnvfp4 takes 256 on sm100a",
        ),
        (
            changed(PAIRED, arch=Arch.SM120F, sharing=Sharing.PINGPONG, cluster_shape_mnk=(1, 1, 1)),
            "pair_tile",
            "tile of 256 x 128: its sums do not fit the registers of eight warps",
        ),
        (
            changed(NARROW_PAIR, pair=Pair.NVFP4),
            "pair_tile",
            "tile of 128 x 64: scales come in tiles of 128 rows, of which 64 columns of mixed codes take half",
        ),
        (
            changed(NARROW_PAIR, tile_shape_mnk=(64, 128, 128)),
            "pair_tile",
            "tile of 64 x 128: scales come in tiles of 128 rows, of which 64 columns of mixed codes take half",
        ),
        (
            changed(PAIRED, cluster_shape_mnk=(1, 1, 1)),
            "pair_cluster",
            "cluster of 1 x 1: two multiprocessors share a tile's rows",
        ),
    ],
)
def test_rules_of_pairs(config: AnyConfig, rule: str, reason: str) -> None:
    status = REGISTRY.check(config)
    assert (status.rule, status.reason) == (rule, reason)


def names_of_fields(config: AnyConfig) -> set[str]:
    """Those of its parts too, except launch settings and compiler."""
    return fields_of(config).keys() - {"family", "compiler", "splits", "arch"}


def test_every_field_reaches_its_text() -> None:
    changes = {
        "pair": Pair.FLOATS_MXFP4,
        "group": Group.WARPGROUP,
        "tile_m": 24,
        "k_groups": 1,
        "blocks": 2,
        "stages": 7,
        "row_groups": 2,
        "out_dtype": DType.F16,
        "grouped": True,
        "main_loop": PackedLoop.STAYS,
    }
    assert names_of_fields(WARPS) == {*changes, "prepacked"}, "weights of these kernels are packed"
    text = emit(WARPS).text
    for name, value in changes.items():
        other = changed(WARPS, **{name: value})
        assert emit(other).text.replace(to_name(other), to_name(WARPS)) != text, name
    assert emit(changed(GOOD, splits=4)) == emit(GOOD), "slices are told at run time"


@pytest.mark.parametrize("made", [lambda: changed(GOOD, prepacked=False), lambda: changed(FEW, stages=2)])
def test_contradictions_cannot_be_built(made: Callable[[], AnyConfig]) -> None:
    with pytest.raises(ValueError, match="contradicts"):
        made()


_OF_FEW = {"pair": Pair.NVFP4, "out_dtype": DType.BF16, "tile_m": 16, "warps": 8}
_OF_MANY = {"pair": Pair.MXFP4, "out_dtype": DType.F16, "tile_mn": (128, 128)}


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (FEW, _OF_FEW),
        (RING, _OF_FEW | {"stages": 2}),
        (changed(RING, pair=Pair.FLOATS_NVFP4), {"prepacked": True}),
        (TMA, {"pair": Pair.FLOATS_MXFP6, "out_dtype": DType.BF16, "tile_m": 16, "warps": 8, "stages": 3}),
        (MANY, _OF_MANY),
        (AHEAD, _OF_MANY | {"stages": 3}),
        (WIDENED, {"pair": Pair.MXFP4, "out_dtype": DType.BF16, "tile_mn": (64, 64)}),
        (
            changed(WIDENED, pair=Pair.FLOATS_MXFP6),
            {"pair": Pair.FLOATS_MXFP4, "out_dtype": DType.BF16, "tile_mn": (64, 64), "prepacked": True},
        ),
        (changed(WIDENED, pair=Pair.E4M3_MXFP4), {"grouped": True}),
        (BATCHED, {"main_loop": PackedLoop.TILE}),
        (STAYING, {"main_loop": PackedLoop.TILE}),
        (
            FOLDED,
            {
                "pair": Pair.E4M3_NVFP4,
                "out_dtype": DType.F16,
                "tile_m": 24,
                "k_groups": 1,
                "blocks": 2,
                "stages": 7,
                "grouped": True,
            },
        ),
        (
            PAIRED,
            {
                "pair": Pair.MXFP8_MXFP4,
                "out_dtype": DType.F16,
                "tile_shape_mnk": (256, 64, 128),
                "cluster_shape_mnk": (4, 1, 1),
                "sharing": Sharing.ONE_SM,
            },
        ),
    ],
)
def test_every_field_of_pairs_reaches_its_text(config: AnyConfig, changes: dict) -> None:
    assert set(changes) <= names_of_fields(config)
    for name, value in changes.items():
        other = changed(config, **{name: value})
        assert emit(other).text.replace(to_name(other), to_name(config)) != emit(config).text, name


@pytest.mark.parametrize(
    ("config", "other"),
    [
        (RING, changed(FEW)),
        (TMA, changed(TMA, main_loop=FewLoop.RING)),
        (AHEAD, MANY),
        (MANY, changed(WIDENED, out_dtype=DType.BF16, tile_mn=(64, 256))),
    ],
)
def test_every_main_loop_has_a_body_of_its_own(config: AnyConfig, other: AnyConfig) -> None:
    spelled = [REGISTRY.kernels_of(one).spell(one) for one in (config, other)]
    assert len({(one.template, one.values.get("header")) for one in spelled}) == 2
