"""Which kernels there are: names, rules, selections, and what reaches their text."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, product

import pytest

from gemmill.emit import emit
from gemmill.families.blockscaled.config import (
    AnyConfig,
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
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.selections import default, smoke, sweep
from gemmill.families.blockscaled.sweep import SWEEP, Op
from gemmill.registry import REGISTRY
from gemmill.space.filters import fields_of
from gemmill.space.names import current_name, parse_name, symbol_of, to_name
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
    arch=Arch.SM120A,
)
FOLDED = changed(GOOD, pair=Pair.E4M3_MXFP4, stages=5)
FOLDED_WARPS = changed(FOLDED, group=Group.WARP, row_groups=1, tile_m=8, k_groups=4, stages=6)
BATCHED = changed(FOLDED, tile_m=256, k_groups=1, main_loop=PackedLoop.BATCHED, splits=2)
STAYING = changed(BATCHED, main_loop=PackedLoop.STAYS, splits=1)
CODES = CODE_PAIRS


def of(tag: type, *loops: str, arch: Arch = Arch.SM90A) -> list:
    """The default configs of a kind, of some main loops alone where these are named."""
    configs = [config for config in default(arch) if isinstance(config, tag)]
    return [config for config in configs if not loops or config.design.main_loop in loops]


def test_the_default_selection_on_hopper() -> None:
    configs = list(default(Arch.SM90A))
    packed = of(PackedConfig)
    weights, folded = ([c for c in packed if c.is_folded is is_folded] for is_folded in (False, True))
    assert len({symbol_of(config) for config in weights}) == 34 and len(weights) == 226
    assert all(REGISTRY.check(config) for config in configs)
    for pair in FP4_PAIRS:
        designs = [config.design for config in weights if config.pair is pair]
        assert {d.tile_m for d in designs} == {8, 16, 32, 64, 96, 128, 192, 256}
        assert {d.tile_m for d in designs if d.group is Group.WARP} == {8, 16}
    few = of(FewConfig, FewLoop.REGISTERS, FewLoop.RING)
    in_words = [config for config in few if config.in_words]
    assert {(c.pair, c.out_dtype, c.design.tile_m) for c in in_words} == set(
        product((Pair.NVFP4, Pair.MXFP4), (DType.BF16, DType.F16), (8, 16))
    )
    assert len({symbol_of(config) for config in few}) == 66 and len(few) == 264
    many = of(ManyConfig, ManyLoop.WORDS, ManyLoop.AHEAD)
    assert {(c.pair, c.out_dtype) for c in many} == {(c.pair, c.out_dtype) for c in in_words}
    assert len({symbol_of(config) for config in folded}) == 34 and len(folded) == 152
    pieces, tma = of(ManyConfig, ManyLoop.PIECES), of(FewConfig, FewLoop.TMA)
    assert len({symbol_of(config) for config in tma}) == 28 and len(tma) == 112
    assert len(pieces) == 48 and len(configs) == sum(map(len, (weights, folded, pieces, few, many, tma)))
    assert set(smoke(Arch.SM90A)) <= set(configs)


def test_bodies_that_load_ahead_are_beside_others() -> None:
    """They take K in multiples; what others take they need not. Of e4m3 tiles of 256 rows are added up together too."""
    ahead = of(FewConfig, FewLoop.RING) + of(ManyConfig, ManyLoop.AHEAD)
    usual = {(type(c), c.operands, c.epilogue) for c in default(Arch.SM90A) if c not in set(ahead)}
    assert {(type(c), c.operands, c.epilogue) for c in ahead} <= usual
    assert {c.k_multiple for c in ahead} == {64, 128}
    assert {(c.pair, c.design.tile_m) for c in of(FewConfig, FewLoop.RING)} == set(
        product((Pair.NVFP4, Pair.MXFP4, Pair.FLOATS_NVFP4), (8, 16))
    )
    batched = of(PackedConfig, PackedLoop.BATCHED)
    assert {c.design.tile_m for c in batched} == {256} and all(c.is_folded for c in batched)


def test_kernels_that_tma_feeds() -> None:
    """Of every class of weights packed in rows, for 8, 16 and 32 rows of A; each fits, and K has whole stages."""
    configs = of(FewConfig, FewLoop.TMA)
    assert all(REGISTRY.check(config) for config in configs) and {config.splits for config in configs} == {1, 2, 3, 4}
    packed = {(c.pair, c.out_dtype) for c in of(ManyConfig) + of(FewConfig) if c.prepacked}
    assert {(c.pair, c.out_dtype, c.design.tile_m) for c in configs} == {
        (*one, tile) for one in packed for tile in (8, 16, 32)
    }
    assert {c.k_multiple for c in configs if c.pair in FP4_PAIRS} == {256}
    assert {c.k_multiple for c in configs if c.pair not in FP4_PAIRS} == {128}
    assert {c.ctas_of_sm for c in configs} == {1, 2}
    assert TMA.shared_bytes == 4 * 2 * (64 * (128 + 16) + 8 * 256) + 64 + 1024


def test_ctas_that_stay() -> None:
    """Of packed weights of every kind that has tiles of 256 rows; K is whole."""
    staying = of(PackedConfig, PackedLoop.STAYS)
    of_256 = {(c.pair, c.out_dtype) for c in of(PackedConfig) if c.design.tile_m == 256}
    assert {(c.pair, c.out_dtype) for c in staying} == of_256 and len(staying) == len(of_256) == 5
    assert all((c.design.tile_m, c.splits, c.ctas_of_sm) == (256, 1, 1) and REGISTRY.check(c) for c in staying)


def test_every_class_on_hopper_has_a_kernel_for_few_rows() -> None:
    """16 rows of A or fewer; but widened e4m3 with scales in groups, and rounded weights with results in f16."""
    configs = list(default(Arch.SM90A))
    classes, few = (
        {(c.pair, c.out_dtype, c.prepacked, c.grouped) for c in some}
        for some in (configs, [c for c in configs if c.design.tile_mn[0] <= 16])
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
        alike = [
            c for c in configs[Arch.SM100A] if (c.pair, c.design.sharing, c.out_dtype) == (pair, sharing, DType.BF16)
        ]
        assert (
            len({c.design.tile_shape_mnk for c in alike}) == 3 and len({c.design.cluster_shape_mnk for c in alike}) == 2
        )
    for pair in CODES:
        alike = [c for c in configs[Arch.SM120A] if c.pair is pair]
        assert {c.design.sharing for c in alike} == {Sharing.COOPERATIVE, Sharing.PINGPONG}
        assert len({c.design.tile_shape_mnk for c in alike}) == (2 if pair in (Pair.NVFP4, Pair.MXFP4) else 1)


def test_second_tiles_on_sm120a() -> None:
    """Every pair has two tiles. Those of mxfp8 that want a later CUTLASS are in the sweep alone, and say so."""
    assert not list(sweep(Arch.SM90A)) and not list(sweep(Arch.SM100A))
    further = list(sweep(Arch.SM120A))
    assert len(further) == 3 and all(REGISTRY.check(config) for config in further)
    for pair in CODES:
        tiles = {c.design.tile_shape_mnk for c in (*default(Arch.SM120A), *further) if c.pair is pair}
        assert len(tiles) == 2, pair
    for config in (*further, *default(Arch.SM120A)):
        said = '"tiles of 64 columns on sm120a want CUTLASS 4.5 or later' in emit(config).text
        assert said == (config in further)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GOOD, "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8"),
        (changed(GOOD, splits=4), "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8_k4"),
        (WARPS, "sm90a_fp4weight_floatsxnvfp4_t16_r4w2b1_s5"),
        (WIDENED, "sm90a_widened_nvfp4xnvfp4_f16_t128"),
        (changed(FEW, splits=2), "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_k2"),
        (RING, "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_s3"),
        (
            changed(RING, pair=Pair.FLOATS_MXFP6, prepacked=True, splits=2),
            "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_s3_packed_k2",
        ),
        (TMA, "sm90a_widenedfew_floatsxmxfp8_f16_t8_w4_tma2_packed"),
        (changed(MANY, splits=4), "sm90a_widened_nvfp4xnvfp4_bf16_t64x256_words_k4"),
        (
            changed(AHEAD, tile_mn=(64, 128), stages=3, splits=2),
            "sm90a_widened_nvfp4xnvfp4_bf16_t64x128_ahead_s3_k2",
        ),
        (changed(AHEAD, tile_mn=(128, 128)), "sm90a_widened_nvfp4xnvfp4_bf16_t128_ahead_s2"),
        (changed(WIDENED, pair=Pair.FLOATS_MXFP8, prepacked=True), "sm90a_widened_floatsxmxfp8_f16_t128_packed"),
        (
            changed(WIDENED, pair=Pair.E4M3_MXFP4, tile_mn=(64, 64), grouped=True),
            "sm90a_widened_e4m3xmxfp4_f16_t64_groups",
        ),
        (FOLDED, "sm90a_fp4weight_e4m3xmxfp4_t16_g2b1_s5"),
        (changed(FOLDED, out_dtype=DType.F16), "sm90a_fp4weight_e4m3xmxfp4_f16_t16_g2b1_s5"),
        (FOLDED_WARPS, "sm90a_fp4weight_e4m3xmxfp4_t8_r1w4b1_s6"),
        (changed(FEW, pair=Pair.FLOATS_MXFP6, prepacked=True), "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_packed"),
        (changed(FOLDED, grouped=True, splits=2), "sm90a_fp4weight_e4m3xmxfp4_t16_g2b1_s5_groups_k2"),
        (BATCHED, "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_batched_k2"),
        (STAYING, "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_stays"),
        (PAIRED, "sm100a_blockscaled_mxfp8xmxfp6_bf16_t256x128x128_c2x1x1_2sm"),
    ],
)
def test_names_and_back(config: AnyConfig, name: str) -> None:
    assert to_name(config) == name
    assert parse_name(name) == config


FORMER = {
    "fp4fp8": (
        "fp4weight",
        ((BATCHED, "e4m3xmxfp4_bf16_t256_g1b1_s5_batched_k2"), (FOLDED_WARPS, "e4m3xmxfp4_bf16_t8_r1w4b1_s6")),
    ),
    "tmafew": ("widenedfew", ((changed(TMA, splits=2), "floatsxmxfp8_f16_t8_w4_s2_k2"),)),
    "widenedmany": (
        "widened",
        (
            (changed(MANY, splits=4), "nvfp4xnvfp4_bf16_t64x256_k4"),
            (changed(MANY, tile_mn=(128, 128)), "nvfp4xnvfp4_bf16_t128x128"),
            (changed(AHEAD, tile_mn=(64, 128), stages=3, splits=2), "nvfp4xnvfp4_bf16_t64x128_s3_k2"),
        ),
    ),
}
"""By a tag of earlier releases the tag of today, and names of then without architecture and tag."""


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, f"sm90a_{tag}_{name}") for tag, (_, names) in FORMER.items() for config, name in names],
)
def test_names_of_earlier_releases(config: AnyConfig, name: str) -> None:
    assert parse_name(name) == config and current_name(name) == to_name(config) != name


@pytest.mark.parametrize("selection", [default, sweep, smoke])
def test_every_name_of_then_is_read(selection: Callable[[Arch], Iterator[AnyConfig]]) -> None:
    """Of every config that a former tag can say, its name of then is read as the same config."""
    read = Counter()
    for config, (tag, (now, _)) in product(chain.from_iterable(map(selection, Arch)), FORMER.items()):
        words = REGISTRY.tagged(tag).grammar.words(config, tag) if config.tag == now else []
        is_of_then = {
            "fp4fp8": config.pair in (Pair.E4M3_MXFP4, Pair.E4M3_NVFP4),
            "tmafew": getattr(config.design, "main_loop", None) is FewLoop.TMA,
            "widenedmany": getattr(config.design, "main_loop", None) in (ManyLoop.WORDS, ManyLoop.AHEAD),
        }
        if words and is_of_then[tag]:
            assert parse_name("_".join([config.arch, tag, *words])) == config
            read[tag] += 1
    assert read == {default: {"fp4fp8": 152, "tmafew": 112, "widenedmany": 60}, smoke: {"fp4fp8": 4}}.get(selection, {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90a_fp4weight_floatsxnvfp4_t16_g2b1", "it ends before stages, expected s and a number"),
        (
            "sm90a_fp4weight_nvfp5_t16_g2b1_s8",
            "pair 'nvfp5', expected floatsxnvfp4, floatsxmxfp4, floatsxmxfp6, floatsxmxfp8, e4m3xmxfp4, e4m3xnvfp4, nvfp4xnvfp4, mxfp4xmxfp4, mxfp8xmxfp8, mxfp8xmxfp6 or mxfp8xmxfp4",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_16_g2b1_s8",
            "tile_m '16', expected e4m3, e5m2, e3m2, e2m1, s8, u8, bf16, f16, f32, s32 or s64; or t and a number",
        ),
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
            "field 'w2', expected groups; or tile, batched or stays; or k and a number; or nothing more",
        ),
        ("sm90a_tmafew_floatsxmxfp8_f16_t8_w4", "it ends before stages, expected s and a number"),
        ("sm90a_widened_nvfp4xnvfp4_bf16", "it ends before tile_mn, expected t and a number, or tMxN"),
        ("sm90a_widened_nvfp4xnvfp4_bf16_t64x64", "it would be written 'sm90a_widened_nvfp4xnvfp4_bf16_t64'"),
        (
            "sm90a_widened_nvfp4xnvfp4_bf16_t64_groups_packed",
            "field 'packed', expected k and a number; or nothing more",
        ),
        (
            "sm90a_widened_nvfp4xnvfp4_bf16_t64x256_s3",
            "stages=3 contradicts main_loop=pieces: ahead has some, others have two",
        ),
        (
            "sm90a_widenedfew_nvfp4xnvfp4_bf16_t8_w4_s0",
            "stages=0 contradicts main_loop=ring: codes that come straight to registers have no stages",
        ),
        (
            "sm90a_tmafew_floatsxmxfp8_f16_t8_w4_s2_packed",
            "field 'packed', expected k and a number; or nothing more",
        ),
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
        (changed(WIDENED, arch=Arch.SM120A), "hopper", "sm120a has no WGMMA: codes are widened on sm90a"),
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
        (changed(PAIRED, arch=Arch.SM120A), "blackwell", "sm120a shares a tile as cooperative, pingpong, not as 2sm"),
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
            changed(PAIRED, arch=Arch.SM120A, sharing=Sharing.PINGPONG, cluster_shape_mnk=(1, 1, 1)),
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
    """Those of its parts too, but what a launch and a compiler are told."""
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
    templates = {REGISTRY.kernels_of(one).spell(one).template for one in (config, other)}
    assert len(templates) == 2


def test_reports_have_words_for_every_kernel() -> None:
    configs = [config for arch in Arch for config in default(arch)]
    assert {SWEEP.shown(config)[0] for config in configs} == set(SWEEP.kinds)
    assert all(SWEEP.shown(config)[1].isdigit() for config in configs)
    assert len({SWEEP.kin(config) for config in configs}) == len(configs)


def test_measured_classes_are_those_of_calls() -> None:
    """A class of the sweep is that of the kernels which serve it, and of no other."""
    measured = {Op(one.name): one for one in SWEEP.measured}
    assert set(measured) == set(Op)
    weights = [c for c in of(PackedConfig) if c.epilogue == BF16 and not c.grouped]
    codes = [c for c in default(Arch.SM100A) if c.out_dtype is DType.BF16]
    for config in (*weights, *codes):
        serves = [op for op, one in measured.items() if one.serves(config)]
        assert [op.pair for op in serves] == [config.pair]
        (row,) = REGISTRY.named("blockscaled").tuning.rows(config, 0)
        assert row.call_class == serves[0].number == measured[serves[0]].call({"m": 3, "n": 64, "k": 128}).call_class
