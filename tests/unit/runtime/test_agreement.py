"""Ranks that choose alike, and that do not, by torch.distributed's own stores; no rank waits for another."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

import gemmill
from gemmill.runtime import agreement, ops

SENTENCE = (
    "rank 1 chooses variants by build b1 with table digest d2, and rank 0 by build b1 with table digest d1: the same call may "
    "differ in its last bits and time; give all ranks the same build and tables (GEMMILL_BUILD, GEMMILL_TABLES)"
)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch):
    store = dist.HashStore()
    agreement.warn_once.cache_clear()
    yield lambda rank: monkeypatch.setattr(agreement, "_store", lambda: (store, rank))
    agreement.warn_once.cache_clear()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_each_rank_is_held_against_the_first_that_asked(as_rank) -> None:
    as_rank(0)
    assert agreement.disagreement("b1", "d1") is None
    as_rank(1)
    assert agreement.disagreement("b1", "d1") is None
    assert agreement.disagreement("b1", "d2") == SENTENCE
    assert "build b2 with table digest d1, and rank 0" in (agreement.disagreement("b2", "d1") or "")


def test_check_ranks_raises_the_sentence(as_rank, monkeypatch) -> None:
    build = SimpleNamespace(build_id="b1", tuned=SimpleNamespace(digest="d1"))
    monkeypatch.setattr(ops, "active", lambda: build)
    as_rank(0)
    gemmill.check_ranks()
    as_rank(1)
    build.tuned.digest = "d2"
    with pytest.raises(RuntimeError) as caught:
        gemmill.check_ranks()
    assert str(caught.value) == SENTENCE


def test_a_plugin_warns_once(as_rank, caplog) -> None:
    as_rank(0)
    agreement.warn_once("b1", "d1")
    as_rank(1)
    with caplog.at_level(logging.WARNING, "gemmill"):
        for _ in range(2):
            agreement.warn_once("b1", "d2")
    assert [record.getMessage() for record in caplog.records] == [SENTENCE]


def test_without_a_group_there_is_nothing_to_compare() -> None:
    assert agreement.disagreement("b1", "d1") is None


def test_a_group_of_torch_has_a_store(group) -> None:
    assert agreement.disagreement("b1", "d1") is None
    assert (agreement.disagreement("b1", "d2") or "").startswith(
        "rank 0 chooses variants by build b1 with table digest d2"
    )
