"""Which kernels there are: names, rules, selections, and what reaches their text."""

from dataclasses import fields, replace
from itertools import product

import pytest

from gemmill.emit import emit
from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PairConfig,
    Sharing,
    TmaFewConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.pairs import (
    CODE_PAIRS,
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.selections import default, smoke, sweep
from gemmill.families.blockscaled.sweep import SWEEP, Op
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.vocab import Arch, DType

GOOD = WeightConfig(pair=Pair.FLOATS_NVFP4, tile_m=16, k_groups=2, blocks=1, stages=8)


WARPS = replace(GOOD, group=Group.WARP, row_groups=4, stages=5)
WIDENED = WidenedConfig(pair=Pair.NVFP4, out_dtype=DType.F16, tile=128)
FEW = FewConfig(pair=Pair.MXFP4, out_dtype=DType.F16, tile_m=8, warps=4)
RING = replace(FEW, stages=3)
TMA = TmaFewConfig(pair=Pair.FLOATS_MXFP8, out_dtype=DType.F16, tile_m=8, warps=4, stages=2)
MANY = ManyConfig(pair=Pair.NVFP4, out_dtype=DType.BF16, tile_m=64, tile_n=256)
PAIRED = PairConfig(
    pair=Pair.MXFP8_MXFP6,
    out_dtype=DType.BF16,
    tile_shape_mnk=(256, 128, 128),
    cluster_shape_mnk=(2, 1, 1),
    sharing=Sharing.TWO_SM,
    arch=Arch.SM100A,
)
NARROW_PAIR = replace(
    PAIRED,
    tile_shape_mnk=(128, 64, 128),
    cluster_shape_mnk=(1, 1, 1),
    sharing=Sharing.PINGPONG,
    arch=Arch.SM120A,
)
FOLDED = FoldedConfig(pair=Pair.E4M3_MXFP4, out_dtype=DType.BF16, tile_m=16, k_groups=2, blocks=1, stages=5)
FOLDED_WARPS = replace(FOLDED, group=Group.WARP, row_groups=1, tile_m=8, k_groups=4, stages=6)
BATCHED = replace(FOLDED, tile_m=256, k_groups=1, batched=True, splits=2)
STAYING = replace(BATCHED, batched=False, stays=True, splits=1)
CODES = CODE_PAIRS


def test_the_default_selection_on_hopper() -> None:
    configs = list(default(Arch.SM90A))
    weights = [config for config in configs if isinstance(config, WeightConfig)]
    assert len({symbol_of(config) for config in weights}) == 34 and len(weights) == 226
    assert all(REGISTRY.check(config) for config in configs)
    for pair in FP4_PAIRS:
        assert {c.tile_m for c in weights if c.pair is pair} == {8, 16, 32, 64, 96, 128, 192, 256}
        assert {c.tile_m for c in weights if c.pair is pair and c.group is Group.WARP} == {8, 16}
    few = [config for config in configs if isinstance(config, FewConfig)]
    in_words = [config for config in few if config.in_words]
    assert {(c.pair, c.out_dtype, c.tile_m) for c in in_words} == set(
        product((Pair.NVFP4, Pair.MXFP4), (DType.BF16, DType.F16), (8, 16))
    )
    assert len({symbol_of(config) for config in few}) == 66 and len(few) == 264
    many = [config for config in configs if isinstance(config, ManyConfig)]
    assert {(c.pair, c.out_dtype) for c in many} == {(c.pair, c.out_dtype) for c in in_words}
    folded = [config for config in configs if isinstance(config, FoldedConfig)]
    assert len({symbol_of(config) for config in folded}) == 34 and len(folded) == 152
    widened = [config for config in configs if isinstance(config, WidenedConfig)]
    tma = [config for config in configs if isinstance(config, TmaFewConfig)]
    assert len({symbol_of(config) for config in tma}) == 28 and len(tma) == 112
    assert len(widened) == 48 and len(configs) == sum(map(len, (weights, folded, widened, few, many, tma)))
    assert set(smoke(Arch.SM90A)) <= set(configs)


def test_bodies_that_load_ahead_are_beside_others() -> None:
    """They take K in multiples; what others take they need not. Of e4m3 tiles of 256 rows are added up together too."""
    configs = list(default(Arch.SM90A))
    ahead = [c for c in configs if isinstance(c, FewConfig | ManyConfig) and c.stages]
    usual = {(type(c), c.pair, c.out_dtype, c.prepacked) for c in configs if c not in set(ahead)}
    assert {(type(c), c.pair, c.out_dtype, c.prepacked) for c in ahead} <= usual
    assert {c.k_multiple for c in ahead} == {64, 128}
    assert {(c.pair, c.tile_m) for c in ahead if isinstance(c, FewConfig)} == set(
        product((Pair.NVFP4, Pair.MXFP4, Pair.FLOATS_NVFP4), (8, 16))
    )
    assert {c.tile_m for c in configs if isinstance(c, FoldedConfig) and c.batched} == {256}


def test_kernels_that_tma_feeds() -> None:
    """Of every class of weights packed in rows, for 8, 16 and 32 rows of A; each fits, and K has whole stages."""
    configs = [config for config in default(Arch.SM90A) if isinstance(config, TmaFewConfig)]
    assert all(REGISTRY.check(config) for config in configs) and {config.splits for config in configs} == {1, 2, 3, 4}
    packed = {
        (c.pair, c.out_dtype) for c in default(Arch.SM90A) if isinstance(c, WidenedConfig | FewConfig) and c.prepacked
    }
    assert {(c.pair, c.out_dtype, c.tile_m) for c in configs} == {
        (*one, tile) for one in packed for tile in (8, 16, 32)
    }
    assert {c.k_multiple for c in configs if c.pair in FP4_PAIRS} == {256}
    assert {c.k_multiple for c in configs if c.pair not in FP4_PAIRS} == {128}
    assert {c.ctas_of_sm for c in configs} == {1, 2}
    assert TMA.shared_bytes == 4 * 2 * (64 * (128 + 16) + 8 * 256) + 64 + 1024


def test_ctas_that_stay() -> None:
    """Of packed weights of every kind that has tiles of 256 rows; K is whole."""
    configs = [c for c in default(Arch.SM90A) if isinstance(c, WeightConfig | FoldedConfig)]
    staying = [c for c in configs if c.stays]
    of_256 = {(c.pair, c.out_dtype) for c in configs if c.tile_m == 256}
    assert {(c.pair, c.out_dtype) for c in staying} == of_256 and len(staying) == len(of_256) == 5
    assert all((c.tile_m, c.splits, c.ctas_of_sm) == (256, 1, 1) and REGISTRY.check(c) for c in staying)


def test_every_class_on_hopper_has_a_kernel_for_few_rows() -> None:
    """16 rows of A or fewer; but widened e4m3 with scales in groups, and rounded weights with results in f16."""
    configs = list(default(Arch.SM90A))
    classes, few = (
        {(c.pair, c.out_dtype, c.prepacked, c.grouped) for c in some}
        for some in (configs, [c for c in configs if c.tile_m <= 16])
    )
    assert classes - few == {(Pair.E4M3_MXFP4, out, False, True) for out in (DType.BF16, DType.F16)} | {
        (Pair.E4M3_NVFP4, DType.F16, True, False)
    }


def test_every_class_of_weights_has_a_kernel_on_hopper() -> None:
    """But mx formats of a checkpoint beside f16: what the scales make of codes may not fit it. And bases of groups are of mxfp4."""
    classes = {(c.pair, c.out_dtype, c.prepacked, c.grouped) for c in default(Arch.SM90A)}
    both = (False, True)
    for pair, out_dtype, prepacked, grouped in product(Pair, (DType.BF16, DType.F16), both, both):
        match pair:
            case Pair.E4M3_MXFP4:
                wanted = True
            case Pair.E4M3_NVFP4:
                wanted = prepacked and not grouped
            case _ if pair in WEIGHT_PAIRS:
                exact = prepacked or out_dtype is DType.BF16 or pair is Pair.FLOATS_NVFP4
                wanted = exact and not grouped
            case _:
                wanted = not prepacked and not grouped
        assert ((pair, out_dtype, prepacked, grouped) in classes) is wanted, (pair, out_dtype, prepacked, grouped)


def test_the_default_selections_on_blackwell() -> None:
    """Of sm100a at least three tiles, two clusters and both ways of sharing for each pair; of sm120a two tiles of 4-bit codes."""
    configs = {arch: list(default(arch)) for arch in (Arch.SM100A, Arch.SM120A)}
    assert (len(configs[Arch.SM100A]), len(configs[Arch.SM120A])) == (40, 22)
    for arch, of_arch in configs.items():
        assert all(REGISTRY.check(config) for config in of_arch) and not list(smoke(arch))
        assert {(config.pair, config.out_dtype) for config in of_arch} == {
            (pair, out) for pair in CODES for out in (DType.BF16, DType.F16)
        }
    for pair, sharing in product(CODES, (Sharing.ONE_SM, Sharing.TWO_SM)):
        alike = [c for c in configs[Arch.SM100A] if (c.pair, c.sharing, c.out_dtype) == (pair, sharing, DType.BF16)]
        assert len({c.tile_shape_mnk for c in alike}) == 3 and len({c.cluster_shape_mnk for c in alike}) == 2
    for pair in CODES:
        alike = [c for c in configs[Arch.SM120A] if c.pair is pair]
        assert {c.sharing for c in alike} == {Sharing.COOPERATIVE, Sharing.PINGPONG}
        assert len({c.tile_shape_mnk for c in alike}) == (2 if pair in (Pair.NVFP4, Pair.MXFP4) else 1)


def test_second_tiles_on_sm120a() -> None:
    """Every pair has two tiles. Those of mxfp8 that want a later CUTLASS are in the sweep alone, and say so."""
    assert not list(sweep(Arch.SM90A)) and not list(sweep(Arch.SM100A))
    further = list(sweep(Arch.SM120A))
    assert len(further) == 3 and all(REGISTRY.check(config) for config in further)
    for pair in CODES:
        tiles = {c.tile_shape_mnk for c in (*default(Arch.SM120A), *further) if c.pair is pair}
        assert len(tiles) == 2, pair
    for config in (*further, *default(Arch.SM120A)):
        said = '"tiles of 64 columns on sm120a want CUTLASS 4.5 or later' in emit(config).text
        assert said == (config in further)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GOOD, "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8"),
        (replace(GOOD, splits=4), "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8_k4"),
        (WARPS, "sm90a_fp4weight_floatsxnvfp4_t16_r4w2b1_s5"),
        (WIDENED, "sm90a_widened_nvfp4xnvfp4_f16_t128"),
        (replace(FEW, splits=2), "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_k2"),
        (RING, "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_s3"),
        (
            replace(RING, pair=Pair.FLOATS_MXFP6, prepacked=True, splits=2),
            "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_s3_packed_k2",
        ),
        (
            replace(MANY, tile_n=128, stages=3, splits=2),
            "sm90a_widenedmany_nvfp4xnvfp4_bf16_t64x128_s3_k2",
        ),
        (replace(MANY, splits=4), "sm90a_widenedmany_nvfp4xnvfp4_bf16_t64x256_k4"),
        (replace(WIDENED, pair=Pair.FLOATS_MXFP8, prepacked=True), "sm90a_widened_floatsxmxfp8_f16_t128_packed"),
        (
            replace(WIDENED, pair=Pair.E4M3_MXFP4, tile=64, grouped=True),
            "sm90a_widened_e4m3xmxfp4_f16_t64_groups",
        ),
        (FOLDED, "sm90a_fp4fp8_e4m3xmxfp4_bf16_t16_g2b1_s5"),
        (FOLDED_WARPS, "sm90a_fp4fp8_e4m3xmxfp4_bf16_t8_r1w4b1_s6"),
        (replace(FEW, pair=Pair.FLOATS_MXFP6, prepacked=True), "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_packed"),
        (replace(FOLDED, grouped=True, splits=2), "sm90a_fp4fp8_e4m3xmxfp4_bf16_t16_g2b1_s5_groups_k2"),
        (BATCHED, "sm90a_fp4fp8_e4m3xmxfp4_bf16_t256_g1b1_s5_batched_k2"),
        (PAIRED, "sm100a_blockscaled_mxfp8xmxfp6_bf16_t256x128x128_c2x1x1_2sm"),
    ],
)
def test_names_and_back(config: AnyConfig, name: str) -> None:
    assert to_name(config) == name
    assert parse_name(name) == config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90a_fp4weight_floatsxnvfp4_t16_g2b1", "it ends before stages, expected s and a number"),
        (
            "sm90a_fp4weight_nvfp5_t16_g2b1_s8",
            "pair 'nvfp5', expected floatsxnvfp4, floatsxmxfp4, floatsxmxfp6, floatsxmxfp8, e4m3xmxfp4, e4m3xnvfp4, nvfp4xnvfp4, mxfp4xmxfp4, mxfp8xmxfp8, mxfp8xmxfp6 or mxfp8xmxfp4",
        ),
        ("sm90a_fp4weight_floatsxnvfp4_16_g2b1_s8", "tile_m '16', expected t and a number"),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_g2_s8",
            "stages 'g2', expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_r4g2b1_s8",
            "stages 'r4g2b1', expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8_w2",
            "field 'w2', expected stays; or k and a number; or nothing more",
        ),
        ("sm90a_tmafew_floatsxmxfp8_f16_t8_w4", "it ends before stages, expected s and a number"),
        ("sm90a_widened_nvfp4xnvfp4_bf16", "it ends before tile, expected t and a number"),
        ("sm90a_widened_nvfp4xnvfp4_bf16_t64_groups_packed", "field 'packed', expected nothing more"),
        (
            "sm90a_fp4fp8_e4m3xmxfp4_bf16_t16",
            "it ends before stages, expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        ("sm100a_blockscaled_nvfp4xnvfp4_bf16_t128_c1x1x1_1sm", "tile_shape_mnk 't128', expected tMxNxK"),
        (
            "sm100a_blockscaled_nvfp4xnvfp4_bf16_t128x64x256_c1x1x1_3sm",
            "sharing '3sm', expected 1sm, 2sm, cooperative or pingpong",
        ),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_name(name)
    assert str(caught.value) == f"{name!r} is not a kernel name: {said}"


@pytest.mark.parametrize(
    ("change", "rule", "reason"),
    [
        ({"arch": Arch.SM100A}, "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        ({"pair": Pair.MXFP8}, "operands", "mxfp8xmxfp8 is no pair of 16-bit numbers and 4-bit weights"),
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
    status = REGISTRY.check(replace(GOOD, **change))
    assert (status.rule, status.reason) == (rule, reason)


@pytest.mark.parametrize(
    ("config", "rule", "reason"),
    [
        (replace(WIDENED, arch=Arch.SM120A), "hopper", "sm120a has no WGMMA: codes are widened on sm90a"),
        (replace(WIDENED, tile=96), "square", "tile of 96: it is 64 or 128"),
        (
            replace(WIDENED, pair=Pair.FLOATS_MXFP4),
            "packed",
            "floatsxmxfp4 with results in f16: products may not fit f16 without bases, which packed weights have",
        ),
        (replace(FEW, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (
            replace(MANY, pair=Pair.MXFP8),
            "words",
            "mxfp8xmxfp8: codes are widened a step ahead where both operands have four bits",
        ),
        (
            replace(FEW, pair=Pair.FLOATS_MXFP4),
            "packed",
            "floatsxmxfp4 with results in f16: products may not fit f16 without bases, which packed weights have",
        ),
        (
            replace(FEW, pair=Pair.E4M3_NVFP4),
            "rounds",
            "e4m3xnvfp4 is rounded to e4m3: it is folded, not widened",
        ),
        (replace(FEW, tile_m=24), "few", "tile of 24 rows: registers are for 8 or 16"),
        (
            replace(FEW, stages=1),
            "ring",
            "1 stage of a warp: one is filled while another is read, so it has 2 or none",
        ),
        (replace(RING, stages=11), "ring", "11 stages of 4 warps take 253440 bytes, and 231424 are there"),
        (
            replace(RING, pair=Pair.FLOATS_NVFP4),
            "ring",
            "floatsxnvfp4 in stages: weights of a checkpoint come straight to registers",
        ),
        (
            replace(RING, pair=Pair.FLOATS_MXFP4, prepacked=True),
            "ring",
            "floatsxmxfp4 in stages: pieces are of 4-bit codes on both sides, or of packed nvfp4, mxfp6 and mxfp8",
        ),
        (
            replace(TMA, pair=Pair.FLOATS_MXFP4, out_dtype=DType.BF16),
            "packed",
            "floatsxmxfp4 with results in bf16: its weights are not packed in rows",
        ),
        (
            replace(TMA, pair=Pair.MXFP8),
            "packed",
            "mxfp8xmxfp8 with results in f16: its weights are not packed in rows",
        ),
        (
            replace(STAYING, tile_m=128),
            "stays",
            "tile of 128 rows that CTAs take in turns: 256 rows, of one group along K and one block in a stage",
        ),
        (
            replace(STAYING, splits=2),
            "stays",
            "2 slices of K: CTAs that take tiles in turns are in no cluster",
        ),
        (
            replace(STAYING, grouped=True),
            "registers",
            "sums of 512 tokens: 1 groups along K have registers for 256",
        ),
        (replace(TMA, tile_m=24), "boxes", "tile of 24 rows: registers are for 8, 16 or 32"),
        (replace(TMA, warps=6), "boxes", "6 warps: a CTA has 4 or 8"),
        (
            replace(TMA, stages=1),
            "boxes",
            "stages of a warp: 1; one is filled while another is read, so it has 2 or more",
        ),
        (replace(TMA, stages=6), "boxes", "6 stages of 4 warps take 271552 bytes, and 232448 are there"),
        (replace(TMA, splits=9), "splits", "9 slices of K: a cluster has 1 to 8 CTAs"),
        (replace(TMA, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (replace(MANY, tile_m=96), "many", "tile of 96 x 256: it is 64 or 128 by 128 or 256"),
        (
            replace(MANY, tile_m=128, splits=2),
            "many",
            "partial sums of 135168 bytes reuse the stages, which have 98304",
        ),
        (
            replace(MANY, stages=1),
            "ahead",
            "1 stage: one is written while another is multiplied, so it has 2 or more",
        ),
        (replace(MANY, stages=3), "ahead", "3 stages of 40960 bytes do not fit in 114176"),
        (replace(FEW, warps=6), "few", "6 warps: a CTA has 4, or 8 of 4-bit codes on both sides"),
        (
            replace(FEW, pair=Pair.MXFP8, warps=8),
            "few",
            "8 warps: a CTA has 4, or 8 of 4-bit codes on both sides",
        ),
        (
            replace(WIDENED, pair=Pair.FLOATS_NVFP4, out_dtype=DType.BF16, prepacked=True),
            "packed",
            "floatsxnvfp4 with results in bf16: its weights are not packed in rows",
        ),
        (
            replace(WIDENED, grouped=True, tile=64),
            "scaled_in_groups",
            "nvfp4xnvfp4 with scales in groups: only mxfp4_fp8_mm takes those",
        ),
        (
            replace(WIDENED, pair=Pair.E4M3_MXFP4, grouped=True),
            "scaled_in_groups",
            "tile of 128 with scales in groups: registers hold its sums once, not twice",
        ),
        (
            replace(WIDENED, pair=Pair.E4M3_NVFP4),
            "rounds",
            "e4m3xnvfp4 is rounded to e4m3: it is folded, not widened",
        ),
        (replace(FOLDED, arch=Arch.SM100A), "hopper", "sm100a has no WGMMA: codes are widened on sm90a"),
        (replace(FOLDED, pair=Pair.MXFP8), "folds", "mxfp8xmxfp8 is no pair of e4m3 numbers and 4-bit weights"),
        (
            replace(FOLDED, pair=Pair.E4M3_NVFP4, grouped=True),
            "folds",
            "e4m3xnvfp4 with scales in groups: its base is of rows",
        ),
        (
            replace(FOLDED, tile_m=256, stages=2),
            "registers",
            "sums of 256 tokens: 2 groups along K have registers for 128",
        ),
        (
            replace(BATCHED, tile_m=64),
            "together",
            "quads of a tile of 64 rows added up together: only one group along K of more than 64, with scales of rows",
        ),
        (replace(FOLDED, blocks=3), "stage", "stages of 768 columns: packed weights have multiples of 256"),
        (
            replace(FOLDED_WARPS, k_groups=1),
            "stage",
            "stages of 64 columns: blocks of weights have 128",
        ),
        (replace(PAIRED, arch=Arch.SM90A), "blackwell", "sm90a shares a tile as none, not as 2sm"),
        (replace(PAIRED, arch=Arch.SM120A), "blackwell", "sm120a shares a tile as cooperative, pingpong, not as 2sm"),
        (replace(PAIRED, pair=Pair.FLOATS_NVFP4), "codes", "floatsxnvfp4 has activations without scales"),
        (replace(PAIRED, tile_shape_mnk=(128, 128, 128)), "pair_tile", "tile of 128 rows: 2sm multiplies 256"),
        (
            replace(PAIRED, tile_shape_mnk=(256, 96, 128)),
            "pair_tile",
            "tile of 96 columns: the instruction takes 64, 128, 192 or 256",
        ),
        (
            replace(PAIRED, pair=Pair.NVFP4),
            "pair_tile",
            "128 columns in a step: nvfp4xnvfp4 takes 256 on sm100a",
        ),
        (
            replace(PAIRED, arch=Arch.SM120A, sharing=Sharing.PINGPONG, cluster_shape_mnk=(1, 1, 1)),
            "pair_tile",
            "tile of 256 x 128: its sums do not fit the registers of eight warps",
        ),
        (
            replace(NARROW_PAIR, pair=Pair.NVFP4),
            "pair_tile",
            "tile of 128 x 64: scales come in tiles of 128 rows, of which 64 columns of mixed codes take half",
        ),
        (
            replace(NARROW_PAIR, tile_shape_mnk=(64, 128, 128)),
            "pair_tile",
            "tile of 64 x 128: scales come in tiles of 128 rows, of which 64 columns of mixed codes take half",
        ),
        (
            replace(PAIRED, cluster_shape_mnk=(1, 1, 1)),
            "pair_cluster",
            "cluster of 1 x 1: two multiprocessors share a tile's rows",
        ),
    ],
)
def test_rules_of_pairs(config: AnyConfig, rule: str, reason: str) -> None:
    status = REGISTRY.check(config)
    assert (status.rule, status.reason) == (rule, reason)


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
        "stays": True,
    }
    assert {field.name for field in fields(WeightConfig)} == {*changes, "splits", "arch"}
    text = emit(WARPS).text
    for name, value in changes.items():
        other = emit(replace(WARPS, **{name: value})).text
        assert other.replace(to_name(replace(WARPS, **{name: value})), to_name(WARPS)) != text, name
    assert emit(replace(GOOD, splits=4)) == emit(GOOD), "slices are told at run time"


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (replace(FEW), {"pair": Pair.NVFP4, "out_dtype": DType.BF16, "tile_m": 16, "warps": 8}),
        (RING, {"pair": Pair.NVFP4, "out_dtype": DType.BF16, "tile_m": 16, "warps": 8, "stages": 2}),
        (
            TMA,
            {"pair": Pair.FLOATS_MXFP6, "out_dtype": DType.BF16, "tile_m": 16, "warps": 8, "stages": 3},
        ),
        (MANY, {"pair": Pair.MXFP4, "out_dtype": DType.F16, "tile_m": 128, "tile_n": 128, "stages": 2}),
        (
            replace(MANY, stages=2),
            {"pair": Pair.MXFP4, "out_dtype": DType.F16, "tile_m": 128, "tile_n": 128, "stages": 3},
        ),
        (WIDENED, {"pair": Pair.MXFP4, "out_dtype": DType.BF16, "tile": 64}),
        (
            replace(WIDENED, pair=Pair.FLOATS_MXFP6),
            {"pair": Pair.FLOATS_MXFP4, "out_dtype": DType.BF16, "tile": 64, "prepacked": True},
        ),
        (replace(WIDENED, pair=Pair.E4M3_MXFP4), {"grouped": True}),
        (BATCHED, {"batched": False}),
        (STAYING, {"stays": False}),
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
    assert set(changes) <= {field.name for field in fields(config)}
    for name, value in changes.items():
        other = replace(config, **{name: value})
        assert emit(other).text.replace(to_name(other), to_name(config)) != emit(config).text, name


def test_reports_have_words_for_every_kernel() -> None:
    configs = [config for arch in Arch for config in default(arch)]
    assert {SWEEP.shown(config)[0] for config in configs} == set(SWEEP.kinds)
    assert all(SWEEP.shown(config)[1].isdigit() for config in configs)
    assert len({SWEEP.kin(config) for config in configs}) == len(configs)


def test_measured_classes_are_those_of_calls() -> None:
    """A class of the sweep is that of the kernels which serve it, and of no other."""
    measured = {Op(one.name): one for one in SWEEP.measured}
    assert set(measured) == set(Op)
    weights = [c for c in default(Arch.SM90A) if isinstance(c, WeightConfig)]
    weights += [
        c for c in default(Arch.SM90A) if isinstance(c, FoldedConfig) and c.out_dtype is DType.BF16 and not c.grouped
    ]
    codes = [c for c in default(Arch.SM100A) if c.out_dtype is DType.BF16]
    for config in (*weights, *codes):
        serves = [op for op, one in measured.items() if one.serves(config)]
        assert [op.pair for op in serves] == [config.pair]
        (row,) = REGISTRY.named("blockscaled").tuning.rows(config, 0)
        assert row.call_class == serves[0].number == measured[serves[0]].call({"m": 3, "n": 64, "k": 128}).call_class
