"""Calls that variants share: made anew for each, compared with one reference."""

from dataclasses import dataclass
from typing import Any

import pytest

from gemmill.families.kv_cache.cases import made
from gemmill.families.kv_cache.cases.calls import DecodeCase, HadamardCase
from gemmill.families.kv_cache.cases.latent_calls import LatentCase


@dataclass(frozen=True, kw_only=True)
class Wrong(LatentCase):
    """The call by a kernel that writes its inputs and one wrong element from the second time on."""

    def make(self, arguments: dict[str, Any]) -> None:
        super().make(arguments)
        arguments["cache"].zero_()
        if _TIMES[0]:
            arguments["out"][0, 0, 0, 77] += 1
        _TIMES[0] += 1


_TIMES = [0]


@pytest.fixture(autouse=True)
def none_kept() -> None:
    made._KEPT.clear()
    _TIMES[0] = 0


def test_a_repeated_call_is_judged_anew_on_its_first_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Wrong(lengths=(5,), heads=1, page=16)
    assert not case.run("cpu").report
    monkeypatch.setattr(made, "held", lambda *_: pytest.fail("the reference is known"))
    for _ in range(2):
        assert case.run("cpu").report.startswith("1 elements of out are farther"), (
            "also with inputs that were overwritten"
        )


def test_a_result_that_is_not_written_is_wrong_again() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Idle(DecodeCase):
        def make(self, arguments: dict[str, Any]) -> None:
            if not _TIMES[0]:
                super().make(arguments)
            _TIMES[0] += 1

    case = Idle(lengths=(20,), format="k_eden4_v_eden4", heads=2, kv_heads=1, page=16)
    assert not case.run("cpu").report and "out" in case.run("cpu").report


def test_few_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "MOST_KEPT", 2)
    for rows in range(1, 5):
        HadamardCase(rows=rows, columns=64).run("cpu")
    assert [kept.before["x"].shape[0] for kept in made._KEPT.values()] == [3, 4]
    monkeypatch.setattr(made, "_MOST_BYTES", 2**16)
    HadamardCase(rows=70, columns=64).run("cpu")
    assert len(made._KEPT) == 2, "of large ones none"
