"""The shipped table against this tree's kernels: measured winners still serve."""

import json
from pathlib import Path

import pytest

from gemmill.build.options import BuildOptions
from gemmill.build.provenance import source_digest
from gemmill.build.sources import variant_source
from gemmill.build.workshop import keys_for
from gemmill.locations import kernels_dir
from gemmill.runtime.table_file import Key, TableRow, read_table
from gemmill.runtime.tuned import _SHIPPED
from gemmill.space.names import parse_name
from gemmill.vocab import Arch

HELD = Path(__file__).with_name("held_choices.json")
"""The winners of all rows with digests, as commit bcd6e8f served them."""
MEASURED_AGAIN = {
    "4f4869bcd4c4": "rows that leave a tile empty come in boxes",
    "1d488d643f22": "the same",
    "b81050b6ab2e": "each order of bf16 and e4m3 was timed",
}
"""Builds whose kernels have been changed on purpose since: rows measured again with them may have another winner."""


@pytest.fixture(scope="module")
def rows() -> dict[Key, TableRow]:
    return {row.key: row for row in read_table(_SHIPPED / "nvidia-h200.json").rows}


@pytest.fixture(scope="module")
def digests(rows: dict[Key, TableRow]) -> dict[str, str]:
    """Of each winner's kernel as this tree has it, by the winner's name."""
    keys = keys_for(Arch.SM90A, BuildOptions())
    names = {row.variants[0] for row in rows.values() if row.digests}
    sources = {name: variant_source(parse_name(name), keys) for name in names}
    return {name: source_digest(source, kernels_dir(), keys.flags) for name, source in sources.items()}


def test_every_measured_winner_is_served(rows: dict[Key, TableRow], digests: dict[str, str]) -> None:
    measured = [row for row in rows.values() if row.digests]
    assert len(measured) >= 621
    stale = [row.key for row in measured if not digests[row.variants[0]].startswith(row.digests[0])]
    assert not stale, (
        f"{len(stale)} rows are of other sources, {stale[0]} the first: keep those whose machine code a build of this tree has "
        "with `gemmill table merge FILE --current BUILD --out FILE`; measure the others again"
    )


def test_choices_are_held(rows: dict[Key, TableRow]) -> None:
    held = json.loads(HELD.read_text(encoding="utf-8"))
    choices = {(op, n, k, m): held["variants"][i] for op, n, k, m, i in held["rows"]}
    assert len(choices) == 621
    others = {key: name for key, name in choices.items() if rows[key].variants[0] != name}
    assert {rows[key].source.split()[-1] for key in others} <= MEASURED_AGAIN.keys()
