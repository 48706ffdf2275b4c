"""Narrowing a selection by patterns."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.space.filters import FilterError, apply, fields_of
from gemmill.space.names import alias_of, is_alias, to_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch, DType, EpilogueKind, TileScheduler


@pytest.fixture
def selection(make_config: Callable[..., KernelConfig]) -> Selection:
    """Four configs, told apart by their tile's rows."""
    configs = (
        make_config(tile_shape_mnk=(64, 128, 128)),
        make_config(tile_shape_mnk=(128, 128, 128), swap_ab=True),
        make_config(
            tile_shape_mnk=(192, 128, 128), a_dtype=DType.S8, b_dtype=DType.S8, epilogue=EpilogueKind.SCALED_AZP
        ),
        make_config(tile_shape_mnk=(256, 128, 128), tile_scheduler=TileScheduler.STREAM_K, stages=4),
    )
    return Selection(name="test", arch=Arch.SM90A, configs=configs, rejections=())


@pytest.mark.parametrize(
    ("patterns", "rows"),
    [
        ([], [64, 128, 192, 256]),
        (["*_s8_*"], [192]),
        (["sm90a*"], [64, 128, 192, 256]),
        (["re:t(64|256)x"], [64, 256]),
        (["re:^sm90a.*streamk"], [256]),
        (["epilogue=scaledbias"], [64, 128, 256]),
        (["tile_shape_mnk=128x128x128"], [128]),
        (["swap_ab=true"], [128]),
        (["swap_ab=True"], [128]),
        (["stages=auto", "swap_ab=false"], [64, 192]),
        (["stages=4"], [256]),
        (["arch=sm90a", "a_dtype=e4m3", "*persistent*"], [64, 128]),
        (["splits=1", "backend=cutlass"], [64, 128, 192, 256]),
    ],
)
def test_patterns(selection: Selection, patterns: list[str], rows: list[int]) -> None:
    found = apply(selection, patterns)
    assert [config.design.tile_shape_mnk[0] for config in found.configs] == rows
    assert replace(found, configs=selection.configs) == selection


def test_an_alias_is_a_pattern(selection: Selection) -> None:
    """Eight digits that a name always has, and another has not."""
    names = [to_name(config) for config in selection.configs]
    assert len({alias_of(name) for name in names}) == 4 and all(is_alias(alias_of(name)) for name in names)
    assert not is_alias(names[0]) and not is_alias(alias_of(names[0]).upper() + "0")
    assert apply(selection, [alias_of(names[2])]).configs == selection.configs[2:3]
    with pytest.raises(FilterError, match="fits '00000000': see `gemmill list` for their names"):
        apply(selection, ["00000000"])


def test_every_field_is_a_key(selection: Selection) -> None:
    for config in selection.configs:
        for key, value in fields_of(config).items():
            assert config in apply(selection, [f"{key}={value}"]).configs


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (
            "tile=128",
            "filter tile=128: there is no field 'tile'; the fields are family, compiler, a_dtype, b_dtype, accumulator_dtype, out_dtype, ",
        ),
        ("epilogue=gelu", "filter epilogue=gelu: no variant has that epilogue; the values are scaledazp, scaledbias"),
        ("re:(", "filter 're:(' is not a regular expression: missing ), unterminated subpattern at position 0"),
        (
            "*nothing*",
            "no variant of selection 'test' (4 variants) fits '*nothing*': see `gemmill list` for their names",
        ),
    ],
)
def test_errors(selection: Selection, pattern: str, text: str) -> None:
    with pytest.raises(FilterError) as caught:
        apply(selection, [pattern])
    assert str(caught.value).startswith(text)


def test_patterns_that_exclude_each_other(selection: Selection) -> None:
    with pytest.raises(FilterError, match="fits 'stages=4' and 'swap_ab=true': see `gemmill list`"):
        apply(selection, ["stages=4", "swap_ab=true"])


def test_name_is_a_pattern(selection: Selection) -> None:
    for config in selection.configs:
        assert apply(selection, [to_name(config)]).configs == (config,)
