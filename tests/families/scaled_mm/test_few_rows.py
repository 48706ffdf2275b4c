"""The kernel of few rows in the selection without the CuTe DSL: its facts, and where the model takes it."""

from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.classes import Need, class_code, scales_code
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.model import IN_CLUSTER
from gemmill.families.scaled_mm.rules.memory import few_rows_bytes
from gemmill.families.scaled_mm.selections import default, nvcc
from gemmill.families.scaled_mm.spelling.cutlass import spell
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.family import ShapedCall
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import SCALE_GROUPS, Accumulation, Arch, KernelSchedule, MainLoop, ScaleGranularity, ScaleLayout

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
    found = [config for config in configs if config.design.main_loop is MainLoop.FEW_ROWS]
    assert {config.operand_dtype.value for config in found} == {"e4m3", "s8", "bf16"}
    for config in found:
        facts = {row.facts for row in TUNING.rows(config, 0)}
        basic = config.design.kernel_schedule is KernelSchedule.BASIC
        assert {(fact.ctas_of_sm, fact.pads, fact.cost_permille) for fact in facts} == {(2 if basic else 1, 0, 1000)}
        assert {fact.meets == IN_CLUSTER for fact in facts} == {config.group_size > 0}


@pytest.mark.parametrize("sizes", [(5, 2176, 11904), (2, 7104, 12800), (64, 4096, 7168)])
def test_groups_of_few_rows_are_its(configs, sizes) -> None:
    assert fastest(configs, IN_GROUPS, *sizes).design.main_loop is MainLoop.FEW_ROWS


@pytest.mark.parametrize("sizes", [(7, 18160, 1792), (32, 27648, 5120)])
def test_few_rows_of_e4m3_are_its(configs, sizes) -> None:
    assert fastest(configs, PLAIN, *sizes).design.main_loop is MainLoop.FEW_ROWS


def test_many_rows_are_not(configs) -> None:
    assert fastest(configs, IN_GROUPS, 4096, 4096, 4096).design.main_loop is MainLoop.STANDARD
    assert fastest(configs, PLAIN, 4096, 4096, 4096).design.main_loop is MainLoop.STANDARD


def test_the_default_selection_has_none() -> None:
    assert not any(
        config.design.main_loop is MainLoop.FEW_ROWS
        for config in default(Arch.SM90A)
        if isinstance(config, KernelConfig)
    )


def test_the_name_has_its_main_loop(make_config) -> None:
    """The same design without it is a kernel of CUTLASS's collectives."""
    basic = {"kernel_schedule": KernelSchedule.BASIC, "tile_shape_mnk": (64, 16, 256)}
    config = make_config(**basic, swap_ab=True, stages=5, main_loop=MainLoop.FEW_ROWS)
    standard = replace(config, design=replace(config.design, main_loop=MainLoop.STANDARD))
    assert parse_name(to_name(config)) == config
    assert to_name(config).replace("_fewrows", "") == to_name(standard)
    assert REGISTRY.check(config).ok and REGISTRY.check(standard).ok
    assert [spell(each).template.rpartition("/")[2] for each in (config, standard)] == [
        "few_rows_mm.cu.jinja",
        "scaled_mm.cu.jinja",
    ]


def test_its_shared_memory_has_scales_in_groups(make_config) -> None:
    """Rings and sums are whole swizzle patterns. Four stages of 24,576 bytes and 16 of barriers, 8,704 of sums; of scales one
    vector of 4 numbers a stage, or two groups of 32 rows and B's."""
    plain = {"kernel_schedule": KernelSchedule.BASIC, "tile_shape_mnk": (64, 32, 256), "swap_ab": True, "stages": 4}
    blocks = {"group_size": 128, "a_scale": ScaleGranularity.GROUP, "b_scale": ScaleGranularity.BLOCK}
    grouped = blocks | {"scale_layout": ScaleLayout.STRIDED, "accumulation": Accumulation.PROMOTED}
    few_rows = make_config(**plain, main_loop=MainLoop.FEW_ROWS)
    in_groups = make_config(**plain | grouped, main_loop=MainLoop.FEW_ROWS)
    assert few_rows_bytes(few_rows) == 106 * 1024 + 1024, "99,328 + 8,704 + 64 bytes, rounded up, and room to align"
    assert few_rows_bytes(in_groups) == 107 * 1024 + 1024, "99,328 + 8,704 + 1,152 bytes"
