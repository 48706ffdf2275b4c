"""Selections: which kernels there are, and their words in reports and sweeps."""

from dataclasses import replace
from itertools import product

from families.blockscaled.kernel_configs import BF16, CODES, TMA
from gemmill.emit import emit
from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.config import (
    FewConfig,
    ManyConfig,
    PackedConfig,
    PairConfig,
)
from gemmill.families.blockscaled.design import (
    FewLoop,
    Group,
    ManyLoop,
    PackedLoop,
    Sharing,
)
from gemmill.families.blockscaled.pairs import (
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.selections import default, smoke, sweep
from gemmill.families.blockscaled.sweep import SWEEP, MeasuredOp
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of
from gemmill.vocab import Arch, DType


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
    """They take K in multiples, and need not take other calls. Of e4m3 tiles of 256 rows are added up together too."""
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
    """Of packed weights of every kind with tiles of 256 rows; K is whole."""
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
    """Except mx formats of a checkpoint with f16, which may not hold code times scale. And bases of groups are of mxfp4."""
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
    """Of sm100a at least three tiles, two clusters and both ways of sharing for each pair; of sm120f two tiles of 4-bit codes."""
    configs = {
        arch: [config for config in default(arch) if isinstance(config, PairConfig)]
        for arch in (Arch.SM100A, Arch.SM120F)
    }
    assert len(list(default(Arch.SM100A))) == 40
    assert (len(configs[Arch.SM100A]), len(configs[Arch.SM120F])) == (40, 22)
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
        alike = [c for c in configs[Arch.SM120F] if c.pair is pair]
        assert {c.design.sharing for c in alike} == {Sharing.COOPERATIVE, Sharing.PINGPONG}
        assert len({c.design.tile_shape_mnk for c in alike}) == (2 if pair in (Pair.NVFP4, Pair.MXFP4) else 1)


def test_weights_on_sm120f_are_those_of_warps() -> None:
    """Every class of weights that Hopper has kernels of; stages fit shared memory of 99 KB, and no pair of codes has kernels by warps."""
    found = [config for config in default(Arch.SM120F) if not isinstance(config, PairConfig)]
    assert all(REGISTRY.check(config) for config in found) and not {config.pair for config in found} & set(CODES)
    classes = {
        arch: {CLASSES.number(config) for config in default(arch) if config.pair not in CODES}
        for arch in (Arch.SM90A, Arch.SM120F)
    }
    lacking = {
        (c.pair, c.grouped, c.prepacked)
        for c in default(Arch.SM90A)
        if c.pair not in CODES and CLASSES.number(c) not in classes[Arch.SM120F]
    }
    assert lacking == {(Pair.E4M3_MXFP4, True, False)}
    for config in found:
        assert config.arch is Arch.SM120F
        if isinstance(config, PackedConfig):
            assert config.design.group is Group.WARP and config.design.stages * config.stage_bytes <= 99 * 1024 - 2048
    widened = replace(next(c for c in default(Arch.SM90A) if isinstance(c, ManyConfig)), arch=Arch.SM120F)
    assert REGISTRY.check(widened).reason == "sm120f has no WGMMA: codes are widened on sm90a"


def test_second_tiles_on_sm120f() -> None:
    """Every pair has two tiles. Those of mxfp8 that want a later CUTLASS are in the sweep alone, and say so."""
    assert not list(sweep(Arch.SM90A)) and not list(sweep(Arch.SM100A))
    further = list(sweep(Arch.SM120F))
    assert len(further) == 3 and all(REGISTRY.check(config) for config in further)
    for pair in CODES:
        tiles = {c.design.tile_shape_mnk for c in (*default(Arch.SM120F), *further) if c.pair is pair}
        assert len(tiles) == 2, pair
    for config in (*further, *default(Arch.SM120F)):
        said = '"tiles of 64 columns on sm120f want CUTLASS 4.5 or later' in emit(config).text
        assert said == (config in further)


def test_reports_have_words_for_every_kernel() -> None:
    configs = [config for arch in Arch for config in default(arch)]
    assert {SWEEP.shown(config)[0] for config in configs} == set(SWEEP.kinds)
    assert all(SWEEP.shown(config)[1].isdigit() for config in configs)
    assert len({SWEEP.kin(config) for config in configs}) == len(configs)


def test_measured_classes_are_those_of_calls() -> None:
    """A class of the sweep is that of the kernels which serve it, and of no other."""
    measured = {MeasuredOp(one.name): one for one in SWEEP.measured}
    assert set(measured) == set(MeasuredOp)
    weights = [c for c in of(PackedConfig) if c.epilogue == BF16 and not c.grouped]
    codes = [c for c in default(Arch.SM100A) if c.out_dtype is DType.BF16]
    for config in (*weights, *codes):
        serves = [op for op, one in measured.items() if one.serves(config)]
        assert [op.pair for op in serves] == [config.pair]
        (row,) = REGISTRY.named("blockscaled").tuning.rows(config, 0)
        assert row.call_class == serves[0].number == measured[serves[0]].call({"m": 3, "n": 64, "k": 128}).call_class
