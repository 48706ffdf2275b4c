"""The loss of a build, by the times of the tables' rows."""

from pathlib import Path

import pytest

from gemmill.families import scaled_mm
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.loss import Loss, loss_of
from gemmill.runtime.table_file import Source, TableRow, make_table
from gemmill.runtime.tuned import LoadedTable, Tuned, TunedChoice, siblings

SMS = 132
SOURCE = Source(gpu="NVIDIA H200", date="2026-11-20", program="gemmill tune")


@pytest.fixture
def manifest(make_manifest, make_config):
    """Of two tiles."""
    return make_manifest(*(make_config(tile_shape_mnk=(m, 128, 128)) for m in (128, 256)))


def tuned_of(*rows: TableRow, choices: bool = True, quarantined: tuple[str, ...] = ()) -> Tuned:
    table = make_table("NVIDIA H200", "sm90a", {"s": SOURCE}, rows)
    chosen: list[TunedChoice] = [choice for row in rows for choice in siblings(row, exact=True)] if choices else []
    loaded = LoadedTable(path=Path("t.json"), table=table, trusts={}, stale=0, refused=0)
    return Tuned(choices=tuple(chosen), tables=(loaded,), quarantined=dict.fromkeys(quarantined, "wrong"))


def row(*variants: str, us: tuple[float, ...], m: int = 16) -> TableRow:
    return TableRow(op="fp8", sizes={"n": 4096, "k": 4096, "m": m}, variants=variants, us=us, source="s")


def test_a_build_with_the_fastest_loses_nothing(manifest) -> None:
    names = [entry.name for entry in manifest.entries]
    found = loss_of(manifest.entries, tuned_of(row(*names, us=(5.0, 6.0))), SMS)
    assert found == Loss(rows=1, none=0, estimated=0, mean=0.0, worst=0.0, worst_at="fp8 16 x 4096 x 4096")
    assert loss_of(manifest.entries, tuned_of(), SMS) is None


def test_without_the_fastest_the_table_says_how_much_longer(manifest) -> None:
    """And the mean is that of ratios: 2 and 1 are 1.41."""
    names = [entry.name for entry in manifest.entries]
    rows = (row(*names, us=(5.0, 10.0)), row(names[1], us=(7.0,), m=64))
    found = loss_of(manifest.entries[1:], tuned_of(*rows), SMS)
    assert (found.rows, found.estimated, found.worst) == (2, 0, 1.0)
    assert found.mean == pytest.approx(2**0.5 - 1)
    assert str(found) == (
        "loses 41.4% in the mean over 2 measured shapes, 100% at worst (fp8 16 x 4096 x 4096); 0 of them are estimates"
    )


def test_no_loss_has_no_sign() -> None:
    """A tie that today's choice won is a little faster than the row's first."""
    assert str(Loss(rows=2, none=0, estimated=0, mean=-0.0002, worst=0.0, worst_at="x")).startswith("loses 0.0% in")


def test_what_was_not_timed_is_estimated(manifest, shaped_call) -> None:
    """By the model, and never as fast as timed variants: it was not among those."""
    names = [entry.name for entry in manifest.entries]
    (other,) = manifest.entries[1:]
    (facts, *_) = REGISTRY.tunings[scaled_mm.NAME].rows(other.config, 0)
    modelled = model_ns(facts, shaped_call(m=16), SMS) / 1000
    slow = loss_of([other], tuned_of(row(names[0], us=(modelled * 10,))), SMS)
    assert (slow.estimated, slow.worst) == (1, 0.0)
    fast = loss_of([other], tuned_of(row(names[0], us=(modelled / 10,))), SMS)
    assert (fast.estimated, fast.worst) == (1, pytest.approx(9.0))
    kept_out = loss_of(
        manifest.entries, tuned_of(row(names[0], us=(modelled / 10,)), choices=False, quarantined=(names[0],)), SMS
    )
    assert kept_out == fast


def test_shapes_without_a_variant_are_counted(manifest) -> None:
    row_of_int8 = (
        "sm90a_cutlass_s8_s8_s32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_exact_splitk_swapab_s4_a16b16d8"
    )
    rows = (row(manifest.entries[0].name, us=(5.0,)), row(row_of_int8, us=(5.0,), m=32))
    found = loss_of(manifest.entries, tuned_of(*rows), SMS)
    assert (found.rows, found.none) == (1, 1)
    assert str(found).endswith("0 of them are estimates, and has no variant for 1")
