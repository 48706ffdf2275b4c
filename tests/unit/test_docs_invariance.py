"""The page on batch invariance says of every op whether equal calls have equal bits."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from gemmill.runtime.schemas import OPS

PAGE = Path(__file__).parents[2] / "docs" / "invariance.md"
BEGIN, END = "## From run to run", "## Cost"


def patterns(text: str) -> list[str]:
    """Names of ops in the table, of which the first that fits counts."""
    (section,) = re.findall(rf"^{BEGIN}\n(.*?)^{END}\n", text, re.MULTILINE | re.DOTALL)
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def left_out(names: list[str], ops: list[str]) -> tuple[list[str], list[str]]:
    """Ops that no name fits, and names that come first for no op."""
    first = {op: next((name for name in names if fnmatchcase(op, name)), None) for op in ops}
    return [op for op, name in first.items() if name is None], [name for name in names if name not in first.values()]


def test_every_op_is_in_the_list_and_every_name_there_is_an_op() -> None:
    assert left_out(patterns(PAGE.read_text()), sorted(op.name for op in OPS)) == ([], [])


def test_an_op_that_is_missing_is_told() -> None:
    assert left_out(["a_*", "b"], ["a_c", "d"]) == (["d"], ["b"])
