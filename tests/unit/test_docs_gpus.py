"""docs/gpus.md and the README say of each kernel how far it has come, and of each op that sm120f does not answer the reason."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.registry import REGISTRY
from gemmill.space.selections import select
from gemmill.vocab import Arch

ROOT = Path(__file__).parents[2]
GPUS = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
STATES = ("run", "exercised by emulation on an H200", "compiled", "in `default`", "-")


def rows_of(text: str, head: str) -> list[list[str]]:
    """The cells of the rows of the table whose head begins so."""
    (table,) = re.findall(rf"^\| {re.escape(head)} .*\n\|[-: |]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]


def told(head: str) -> set[str]:
    """The ops that the rows of a table begin with."""
    return {name for row in rows_of(GPUS, head) for name in re.findall(r"`(\w+)`", row[0])}


def answered(arch: Arch) -> dict[str, set[Any]]:
    """By op, the operands and results that kernels of `default` take. Rows by number are a way of loading, not an operand."""
    found: dict[str, set[Any]] = defaultdict(set)
    for config in select("default", arch).configs:
        operands = getattr(config, "operands", None)
        if hasattr(operands, "indexed"):
            operands = replace(operands, indexed=False)
        for op in REGISTRY.ops_of(config):
            found[op].add((operands, config.operand_dtype, config.out_dtype))
    return found


def test_each_op_that_sm120f_does_not_answer_has_its_reason() -> None:
    ours, theirs = answered(Arch.SM90A), answered(Arch.SM120F)
    declared = {op.schema.name for family in REGISTRY.families for op in family.asks.ops}  # none that a test declared
    assert set(ours) == declared, "sm90a answers every op"
    assert set(ours) - set(theirs) == told("op without a kernel on `sm120f`")
    fewer = {op for op, operands in theirs.items() if ours[op] - operands}
    assert fewer == told("op with fewer operands on `sm120f`")
    for head in ("op without a kernel on `sm120f`", "op with fewer operands on `sm120f`"):
        assert all(len(row) == 3 and all(row) for row in rows_of(GPUS, head))


@pytest.mark.parametrize(("page", "head"), [("docs/gpus.md", "kernels"), ("README.md", "op")])
def test_states_are_those_that_the_page_defines(page: str, head: str) -> None:
    """Emulation does not lift a GPU's "never run"."""
    rows = rows_of((ROOT / page).read_text(encoding="utf-8"), f"{head} |")
    for row in rows:
        for cell in row[-3:]:
            state = re.split("[,;] ", cell.removeprefix("e4m3: "))[0]
            assert state in STATES, f"{row[0]}: {cell}"
            assert (state in ("run", "-")) != (", never run" in cell), f"{row[0]}: {cell}"
        assert row[-3].startswith("run"), "Hopper's kernels have run"
        assert not any(cell.startswith("run") for cell in row[-2:]), "no kernel has run on a Blackwell GPU"
    defined = {row[0] for row in rows_of(GPUS, "state |")}
    assert defined == {*STATES[:-1], "never run"}


def test_emulation_is_told_of_no_kernel_without_figures() -> None:
    """What a row calls exercised stands, with date and build, in a table of what passed."""
    exercised = [row for row in rows_of(GPUS, "kernels |") if "exercised" in row[-1]]
    assert exercised and not any("exercised" in row[-2] for row in rows_of(GPUS, "kernels |"))
    assert re.search(
        r"^\| sm120\w, emulated on an H200, 20\d\d-\d\d-\d\d, build of [0-9a-f]{8} \| passed \|$", GPUS, re.MULTILINE
    )
