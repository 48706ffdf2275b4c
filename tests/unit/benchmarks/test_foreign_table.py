"""Another device's table next to the model: the random shapes, and the counts of the verdict."""

from collections import Counter

import foreign_table


def test_shapes_are_rows_of_the_shipped_tables_and_the_same_of_a_seed() -> None:
    drawn = foreign_table.drawn(4, 1)
    assert drawn == foreign_table.drawn(4, 1) != foreign_table.drawn(4, 2)
    assert set(Counter(workload.kind for workload in drawn).values()) == {4}
    assert len(set(drawn)) == len(drawn)


def test_verdict_counts_shapes_of_one_choice_and_leaves_out_failures() -> None:
    row = {"op": "fp8", "by_table": "a", "by_model": "b"}
    rows = [row | {"ratio": 4.0}, row | {"by_model": "a", "ratio": 1.0}, row | {"ratio": None}]
    assert foreign_table.verdict_of(rows) == {"fp8": {"shapes": 2, "same": 1, "model_over_table": 2.0, "least": 1.0}}
