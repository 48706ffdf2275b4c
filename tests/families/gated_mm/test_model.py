"""The model of gated GEMMs on one launch's tiles."""

import random

import pytest

from families.gated_mm.test_gated_mm import MANY
from gemmill.families.gated_mm.classes import RESULTS, classes_of
from gemmill.families.gated_mm.config import Activation, Result
from gemmill.families.gated_mm.model import model_ns
from gemmill.families.gated_mm.selections import default
from gemmill.families.gated_mm.tuning import TUNING
from gemmill.family import Row, ShapedCall
from gemmill.vocab import Arch
from making import changed


@pytest.mark.parametrize(
    ("result", "tiles"),
    [
        (Result.GROUP, {1: 16, 16: 16, 32: 32, 64: 64, 4096: 64}),
        (Result.BF16, {1: 16, 16: 16, 32: 32, 64: 64, 4096: 128}),
    ],
)
def test_the_model_gives_few_rows_small_tiles(result: Result, tiles: dict[int, int]) -> None:
    for m, tile_m in tiles.items():
        call = ShapedCall(family="gated_mm", call_class=0, sizes=(m, 28672, 4096, 0), alignments=(16, 16, 16))
        best = min(rows_of(result, Activation.SILU), key=lambda row: model_ns(row, call, 132))
        assert best.facts.tile_m == tile_m, m
        assert best.facts.overlaps == (m == 4096)


def rows_of(result: Result, activation: Activation) -> list[Row]:
    (number,) = classes_of(changed(MANY, result=result, activation=activation))
    rows = [row for i, config in enumerate(default(Arch.SM90A)) for row in TUNING.rows(config, i)]
    return [row for row in rows if row.call_class == number and not row.facts.parts]


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("activation", Activation)
def test_one_kernel_takes_every_layout_and_is_chosen_last(result: Result, activation: Activation) -> None:
    rows = rows_of(result, activation)
    (fallback,) = [row for row in rows if row.alignments == (1, 1, 1)]
    assert fallback.least == (0, 0, 0, 0)
    rng = random.Random(0)
    for _ in range(400):
        m, n, k = (2 ** rng.uniform(0, most) for most in (14, 12, 14))
        call = ShapedCall(
            family="gated_mm", call_class=0, sizes=(int(m), 32 * int(n), int(k), 0), alignments=(16, 16, 16)
        )
        best = min(rows, key=lambda row: model_ns(row, call, 132))
        assert best is not fallback, call.sizes
