"""Choosing by ranks: ties, today's choice, the margin, and how far two runs agree."""

import random

import pytest

from gemmill.tuner.choice import agreement, decide


def rounds(**us: float | tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """Times of eight rounds: the same in each unless given one by one."""
    return {name: value if isinstance(value, tuple) else (value,) * 8 for name, value in us.items()}


def test_the_fastest_is_chosen_where_nothing_is_chosen_today() -> None:
    found = decide(rounds(a=3.0, b=2.0, c=4.0), None)
    assert (found.chosen, found.ranked, found.tied) == ("b", ("b", "a", "c"), ("b",))
    assert found.us == {"a": 3.0, "b": 2.0, "c": 4.0} and not found.replaces


def test_ranks_do_not_care_how_the_clocks_were() -> None:
    """b is faster in every round, though its median is the larger when it lacks the fast rounds."""
    drift = (1.0, 1.0, 1.0, 1.0, 1.4, 1.4, 1.4, 1.4)
    found = decide({"a": tuple(2.0 * d for d in drift), "b": tuple(1.9 * d for d in drift)}, None)
    assert (found.fastest, found.tied) == ("b", ("b",))


def test_mean_ranks_decide_where_medians_say_otherwise() -> None:
    """b is never the last, so its mean rank is the least; a is the first in most rounds, so every median is for a."""
    found = decide(
        {"a": (1.0, 1.0, 1.0, 1.2, 1.2), "b": (1.1, 1.1, 1.1, 1.0, 1.0), "c": (1.2, 1.2, 1.2, 1.1, 1.1)}, None
    )
    assert found.us["a"] < found.us["b"]
    assert (found.fastest, found.tied) == ("b", ("a", "b"))


def test_ties_go_to_todays_choice_else_to_the_first_name() -> None:
    mixed = {"b": (2.0, 2.2) * 4, "a": (2.2, 2.0) * 4, "c": (3.0,) * 8}
    assert decide(mixed, None).tied == ("a", "b")
    assert decide(mixed, None).chosen == "a"
    assert decide(mixed, "b").chosen == "b"
    assert decide(rounds(a=2.004, b=2.0), None).tied == ("a", "b"), "half a per cent cannot be told"
    assert decide(rounds(a=2.02, b=2.0), None).tied == ("b",)
    assert decide(rounds(a=2.0, b=2.004), "b", 0.0).chosen == "b", "though nothing is conceded to it"
    erratic = {"a": (2.2, 2.2, 2.2, 1.9) * 2, "b": (2.0,) * 8}
    assert decide(erratic, "a", 0.03).chosen == "b", "a lucky quarter of the rounds does not make up for a tenth"
    assert decide(erratic, "a", 0.15).chosen == "a"


def test_todays_choice_stays_unless_beaten_by_the_margin() -> None:
    assert decide(rounds(a=2.05, b=2.0), "a", 0.03).chosen == "a"
    changed = decide(rounds(a=2.07, b=2.0), "a", 0.03)
    assert (changed.chosen, changed.replaces) == ("b", True)
    assert changed.regret == pytest.approx(0.035)
    assert decide(rounds(b=2.0), "a").regret is None
    assert decide(rounds(a=2.05, b=2.0), "gone", 0.03).chosen == "b"


def test_who_was_dropped_on_the_way_is_not_chosen() -> None:
    found = decide({"a": (1.0,), "b": (2.0,) * 4}, "a")
    assert (found.chosen, found.ranked) == ("b", ("b",))
    assert decide({}, "a") is None


def test_noise_seldom_flips_a_choice_between_equals() -> None:
    rng = random.Random(1)

    def run() -> str:
        noisy = {name: tuple(2.0 * (1 + rng.gauss(0, 0.01)) for _ in range(9)) for name in "abc"}
        return decide(noisy, "b").chosen

    assert sum(run() != "b" for _ in range(200)) <= 4


def test_agreement_of_two_runs() -> None:
    first = {
        1: decide(rounds(a=2.0, b=3.0), None),
        2: decide(rounds(a=2.0, b=2.02), None),
        3: decide(rounds(a=1.0), None),
    }
    second = {1: decide(rounds(a=3.0, b=2.0), None), 2: decide(rounds(a=2.02, b=2.0), None)}
    found = agreement(first, second, 0.03)
    assert (found.workloads, found.flipped, found.beyond_margin, found.flip_share) == (2, 2, 1, 1.0)
    assert found.worst_regret == pytest.approx(0.5)
    assert found.regret == pytest.approx((0.5 + 0.5 + 0.01 + 0.01) / 4)
    assert agreement({}, {}).flip_share == 0.0
