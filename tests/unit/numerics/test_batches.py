"""Rows alone against rows in batches, with ops that keep and break the promise."""

import random
from dataclasses import replace

import pytest
import torch

from gemmill.families.kv_cache.config import KernelKind
from gemmill.numerics import batches
from gemmill.numerics.batches import ON_CPU, Campaign, Limits, Subject

FEW = Limits(pairs=300, seconds=60.0, **ON_CPU)


def run(*families: str, seed: int = 5):
    return Campaign(FEW, seed=seed, families=families, tell=lambda _: None).run()


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(batches, "POOL", 13)


@pytest.mark.parametrize(
    "family",
    [
        "scaled_mm",
        "blockscaled",
        "grouped_mm",
        "gated_mm",
        "fused_experts",
        "sparse_mm",
        "quant",
        "kv_cache",
        "routing",
    ],
)
def test_the_reference_keeps_the_promise(family) -> None:
    found = run(family)
    assert found.total >= 300 and found.different == 0 and found.poisoned > 0
    assert found.pairs == {family: found.total}


def test_a_result_that_depends_on_the_batch_is_told(monkeypatch) -> None:
    """Of one element in one row, where a batch has more than 20 rows."""
    whole = Subject.results

    def broken(self, rows, *more):
        found = whole(self, rows, *more)
        if len(rows) > 20:
            found[0][17].view(torch.uint8).flatten()[0] ^= 1
        return found

    monkeypatch.setattr(Subject, "results", broken)
    found = run("scaled_mm")
    assert 0 < found.different <= found.total // 20
    assert "at place 17 of a batch of " in found.examples[0] and "has other bits than alone" in found.examples[0]


def test_a_neighbour_that_leaks_is_told(monkeypatch) -> None:
    whole = Subject.results

    def leaking(self, rows, poisoned=None, poison=0.0):
        found = whole(self, rows, poisoned, poison)
        if poisoned is not None and len(poisoned):
            found[0].fill_(float("nan"))
        return found

    monkeypatch.setattr(Subject, "results", leaking)
    assert run("scaled_mm").different > 0


def test_the_same_seed_draws_the_same_pairs() -> None:
    first, again, other = run("scaled_mm"), run("scaled_mm"), run("scaled_mm", seed=6)
    assert (first.pairs, first.poisoned) == (again.pairs, again.poisoned) != (other.pairs, other.poisoned)


def test_families_of_which_no_call_is_made_are_left_out_and_named(monkeypatch) -> None:
    def refuse(self, *_):
        raise batches._LeftOut("so it is")

    monkeypatch.setattr(Subject, "__init__", refuse)
    found = run("sparse_mm", "grouped_mm")
    assert found.total == 0 and found.left_out == dict.fromkeys(
        ("sparse_mm: so it is", "grouped_mm: so it is"), batches.FRUITLESS
    )
    with pytest.raises(ValueError) as caught:
        run("no_family")
    assert str(caught.value) == "no variant with an order of K to compare, of the families no_family"


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        (("rotary=e4m3",), "kv_latent_attention: "),
        (("family=gated_mm", "group_size=128"), "128"),
        (("family=gated_mm", "group_size=32"), "32"),
    ],
)
def test_calls_of_some_variants_alone_are_drawn_and_made(filters, told, monkeypatch) -> None:
    monkeypatch.setattr(batches, "TILE_ROWS", 512)  # 13 rows in tiles of 128 would look like weights
    campaign = Campaign(replace(FEW, batches=2, pairs=1), seed=5, filters=filters, tell=lambda _: None)
    subjects, drawn = [], campaign._draw
    monkeypatch.setattr(campaign, "_draw", lambda subject: (subjects.append(str(subject)), drawn(subject)))
    found = campaign.run()
    assert found.total > 0 and not found.different and not found.left_out
    assert subjects and all(told in subject for subject in subjects)


def test_a_filter_that_nothing_fits_is_told() -> None:
    with pytest.raises(ValueError) as caught:
        Campaign(FEW, seed=5, families=("quant",), filters=("family=gated_mm",), tell=lambda _: None).run()
    assert str(caught.value) == (
        "no variant with an order of K to compare, of the families quant, that fits 'family=gated_mm'"
    )


@pytest.mark.parametrize("kind", [KernelKind.DECODE, KernelKind.ATTEND])
def test_an_attention_is_of_sequences_and_its_page_table_as_wide_as_the_longest(kind) -> None:
    known = Campaign(FEW, seed=5, tell=lambda _: None)._known()
    entry = next(e for e in known if e.family == "kv_cache" and e.config.kind is kind and e.config.slices == 4)
    subject = Subject(entry, random.Random(3), FEW, "cpu")
    table, lengths = (subject._given[subject._names.index(name)] for name in ("block_table", "seq_lens"))
    short = lengths.argmin().reshape(1)
    narrow = subject._of_rows("block_table", table, short, False)
    assert narrow.shape[1] < table.shape[1] and int(narrow.max()) < 10**6
    rows = torch.arange(batches.POOL, dtype=torch.int64).flip(0)
    assert not len(subject.differing(rows, rows.clone(), subject.results(rows)))
    assert len(subject.differing(rows, rows.clone(), subject.results(rows.flip(0))))
