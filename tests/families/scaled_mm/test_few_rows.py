"""The kernel of few rows in the selection without the CuTe DSL: its facts, and where the model takes it."""

from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.classes import Need, class_code, scales_code
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.model import IN_CLUSTER
from gemmill.families.scaled_mm.selections import default, nvcc
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.family import ShapedCall
from gemmill.registry import REGISTRY
from gemmill.vocab import SCALE_GROUPS, Arch, Backend, KernelSchedule, TileScheduler

SMS = 132
PLAIN = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16")
IN_GROUPS = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16", scales_code(SCALE_GROUPS[0], mn_major=False))


@pytest.fixture(scope="module")
def configs() -> list[KernelConfig]:
    return [config for config in nvcc(Arch.SM90A) if REGISTRY.check(config).ok]


def fastest(configs: list[KernelConfig], code: int, m: int, n: int, k: int) -> KernelConfig:
    call = ShapedCall(family="scaled_mm", call_class=code, sizes=(m, n, k), alignments=(16, 16, 16))
    rows = [(row, config) for config in configs for row in TUNING.rows(config, 0) if row.call_class == code]
    return min(rows, key=lambda found: TUNING.model_ns(found[0], call, SMS))[1]


def test_two_ctas_of_one_consumer_group_fit_an_sm(configs) -> None:
    found = [config for config in configs if config.walks_few_rows]
    assert {config.operand_dtype.value for config in found} == {"e4m3", "s8", "bf16"}
    for config in found:
        facts = {row.facts for row in TUNING.rows(config, 0)}
        basic = config.design.kernel_schedule is KernelSchedule.BASIC
        assert {(fact.ctas_of_sm, fact.pads, fact.cost_permille) for fact in facts} == {(2 if basic else 1, 0, 1000)}
        assert {fact.meets == IN_CLUSTER for fact in facts} == {config.group_size > 0}


@pytest.mark.parametrize("sizes", [(5, 2176, 11904), (2, 7104, 12800), (64, 4096, 7168)])
def test_groups_of_few_rows_are_its(configs, sizes) -> None:
    assert fastest(configs, IN_GROUPS, *sizes).walks_few_rows


@pytest.mark.parametrize("sizes", [(7, 18160, 1792), (32, 27648, 5120)])
def test_few_rows_of_e4m3_are_its(configs, sizes) -> None:
    assert fastest(configs, PLAIN, *sizes).walks_few_rows


def test_many_rows_are_not(configs) -> None:
    assert not fastest(configs, IN_GROUPS, 4096, 4096, 4096).walks_few_rows
    assert not fastest(configs, PLAIN, 4096, 4096, 4096).walks_few_rows


def test_the_default_selection_has_none() -> None:
    assert not any(config.walks_few_rows for config in default(Arch.SM90A) if isinstance(config, KernelConfig))


def test_which_configs_it_is(make_config) -> None:
    basic = {"kernel_schedule": KernelSchedule.BASIC, "tile_shape_mnk": (64, 16, 256)}
    config = make_config(**basic, swap_ab=True, stages=5)
    assert config.walks_few_rows
    split = replace(config, design=replace(config.design, tile_scheduler=TileScheduler.SPLIT_K))
    assert not split.walks_few_rows
    assert not replace(config, backend=Backend.CUTEDSL).walks_few_rows
    assert not make_config(**basic, swap_ab=True).walks_few_rows
    assert not make_config(**basic, stages=5).walks_few_rows
