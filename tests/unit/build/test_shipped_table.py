"""The shipped table against this tree's kernels: what was measured is still served."""

import json
from pathlib import Path

import pytest

from gemmill.build.provenance import source_digest
from gemmill.build.sources import flags_for
from gemmill.emit import emit
from gemmill.locations import kernels_dir
from gemmill.runtime.table_file import Key, TableRow, read_table
from gemmill.runtime.tuned import _SHIPPED, current_row
from gemmill.space.names import parse_name
from gemmill.vocab import Arch

HELD = Path(__file__).with_name("held_choices.json")
"""The winners of all rows with digests, as commit bcd6e8f served them."""
MEASURED_AGAIN = {"4f4869bcd4c4": "rows that leave a tile empty come in boxes", "1d488d643f22": "the same"}
"""Builds whose kernels have been changed on purpose since: rows that were measured again with them may have another winner."""


@pytest.fixture(scope="module")
def rows() -> dict[Key, TableRow]:
    return {row.key: row for row in read_table(_SHIPPED / "nvidia-h200.json").rows}


@pytest.fixture(scope="module")
def digests(rows: dict[Key, TableRow]) -> dict[str, str]:
    """Of each winner's kernel as this tree has it, by the winner's name."""
    flags = flags_for(Arch.SM90A)
    configs = {row.variants[0]: parse_name(row.variants[0]) for row in rows.values() if row.digests}
    return {
        name: source_digest(config, emit(config.compiled).text, kernels_dir(), flags)
        for name, config in configs.items()
    }


def test_every_measured_winner_is_served(rows: dict[Key, TableRow], digests: dict[str, str]) -> None:
    measured = [row for row in rows.values() if row.digests]
    assert len(measured) >= 621
    stale = [
        row.key for row in measured if (now := current_row(row, digests)) is None or now.variants[0] != row.variants[0]
    ]
    assert not stale, (
        f"{len(stale)} rows are not served, {stale[0]} the first: where the machine code is the same, build both commits and "
        "run `gemmill table rebase`; else measure them again"
    )


def test_choices_are_held(rows: dict[Key, TableRow]) -> None:
    held = json.loads(HELD.read_text(encoding="utf-8"))
    choices = {(op, n, k, m): held["variants"][i] for op, n, k, m, i in held["rows"]}
    assert len(choices) == 621
    others = {key: name for key, name in choices.items() if rows[key].variants[0] != name}
    assert {rows[key].source.split()[-1] for key in others} <= MEASURED_AGAIN.keys()
