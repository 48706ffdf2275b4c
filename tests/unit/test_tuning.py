"""A family's declaration of its sizes, and a choice among variants whose sizes are not m, n and k."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.family import FAMILY
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.family import Registry, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import select
from gemmill.runtime.variant_table import VariantTable, make_variant_table
from toy_tuning import TOY, TOY_TUNING, call, measured, toy_entry


@pytest.fixture
def toy_table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VariantTable]:
    """Of two variants, which take one row and four rows at a time."""
    for known in (REGISTRY.choices, REGISTRY.tunings):
        monkeypatch.setitem(known, TOY, TOY_TUNING)
    entries = [toy_entry(n, str(n)) for n in (1, 4)]
    return lambda *tuned: make_variant_table(entries, ["1", "4"], tuned)


def test_choice_over_named_sizes(toy_table: Callable[..., VariantTable]) -> None:
    table = toy_table(measured("1", 8), measured("4", 8, page=20))
    assert [tuned.sizes for tuned in table.tuned] == [(8, 7, 16), (8, 7, 20)]
    for asked, name, trust in (
        (call(8), "1", Trust.EXACT),
        (call(8, page=20), "4", Trust.EXACT),
        (call(8, page=17), "1", Trust.NEAREST),
        (call(3, page=21), "1", Trust.NEAREST),  # the nearer one takes four at a time
        (call(9), "4", Trust.MODEL),
        (call(2), "4", Trust.MODEL),  # 8 are more than three times as many
        (call(8, page=64), "4", Trust.MODEL),
    ):
        choice = select(table, asked, 1)
        assert (choice.entry.name, choice.trust) == (f"sm90a_toy_{name}", trust), asked


def test_the_model_speaks_between_rows(toy_table: Callable[..., VariantTable], monkeypatch) -> None:
    """The row's variant takes one row at a time, its rival four: at 7 rows the model expects 3.5 times the rival's time."""
    for margin, asked, name, trust in (
        (3.4, call(7), "4", Trust.MODEL),
        (3.9, call(8, page=17), "4", Trust.MODEL),
        (3.9, call(8), "1", Trust.EXACT),  # measured there, whatever the model says
        (3.6, call(7), "1", Trust.EXACT),
        (4.1, call(8, page=17), "1", Trust.NEAREST),
    ):
        tuning = replace(TOY_TUNING, reach=replace(TOY_TUNING.reach, margin=margin))
        table = toy_table(measured("1", 8))
        for known in (REGISTRY.choices, REGISTRY.tunings):
            monkeypatch.setitem(known, TOY, tuning)
        choice = select(table, asked, 1)
        assert (choice.entry.name, choice.trust) == (f"sm90a_toy_{name}", trust), (margin, asked)
        few = replace(tuning, reach=replace(tuning.reach, few=asked.sizes[0]))
        monkeypatch.setitem(REGISTRY.choices, TOY, few)
        assert select(table, asked, 1).entry.name == "sm90a_toy_1", "a row for so few serves all smaller ones"


def test_reasons_name_the_sizes(toy_table: Callable[..., VariantTable]) -> None:
    table = toy_table()

    def reasons(asked: ShapedCall) -> list[str]:
        return [rejected.reason for rejected in select(table, asked, 1).trace]

    assert reasons(call(8, page=3))[0] == "it needs PAGE of 4 or more, PAGE is 3"
    assert set(reasons(call(1001))) == {"it takes LENGTH, HEADS and PAGE up to 1000, they are 1001, 7, 16"}
    assert set(reasons(call(8, alignment=2))) == {
        "it needs cache aligned to 4 bytes, its address or row stride is aligned to 2"
    }
    assert set(reasons(call(8, call_class=6))) == {"it computes class 5, the call needs class 6"}
    assert set(reasons(call(8, heads=2))) == {"it takes odd heads"}
    assert set(reasons(call(0))) == {"the result is empty: nothing is launched"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sizes": ("m", "n", "n")}, "sizes m, n, n name one of them twice"),
        ({"near": ("n", "rows")}, "near size 'rows' is none of m, n, k"),
        ({"bucketed": "rows"}, "bucketed size 'rows' is none of m, n, k"),
        ({"result": ("m", "rows")}, "result's size 'rows' is none of m, n, k"),
        ({"near": ("n",)}, "near sizes n and bucketed size m are not each of m, n, k once"),
        ({"near": ("n", "k", "m")}, "near sizes n, k, m and bucketed size m are not each of m, n, k once"),
        ({"aligned": tuple("abcde")}, "aligned operands a, b, c, d, e are 5, the extension has room for 4"),
        (
            {"sizes": tuple("mnkpqrs"), "near": tuple("nkpqrs")},
            "sizes m, n, k, p, q, r, s are 7, the extension has room for 6",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        Registry((replace(FAMILY, tuning=replace(TUNING, **changes)),))
    assert str(caught.value) == f"family 'scaled_mm': {sentence}"
