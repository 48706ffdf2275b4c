"""The order of a round."""

from gemmill.tune.timing import shuffled


def test_nobody_always_follows_the_same_one() -> None:
    names = ["a", "b", "c", "d", "e"]
    orders = [shuffled(names, turn) for turn in range(9)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [shuffled(names, turn) for turn in range(9)], "the same in every run"
    for name in names:
        before = [order[order.index(name) - 1] for order in orders if order[0] != name]
        assert len(set(before)) >= 3, name
