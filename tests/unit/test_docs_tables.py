"""The head of a table of figures has their date, device and commit, and it or its section says which of two figures is better."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
STATE = re.compile(
    r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,12}\b|throw-away|predicted|derived|compiled|runs?\b|profile|on a CPU", re.IGNORECASE
)
"""A commit or build; else its substitute: a throw-away program, a prediction, several runs."""
FIGURE = re.compile(r"[*~]*-?[\d,]*\.?\d+")
BETTER = re.compile(r"\b(?:less|more) is better", re.IGNORECASE)
EXACT = {
    "docs/fused_experts.md": {"packing"},
    "docs/formats.md": {"format", "codes"},
    "docs/gated_mm.md": {"activation"},
    "docs/kv_cache.md": {"format", "vLLM 0.33.0", "keys and values", "name in a kernel's name"},
    "docs/sparse_mm.md": {"layout"},
    "docs/quant.md": {"quantity"},
}
"""Tables of definitions, or of figures that a test computes: by the head of their first column."""


def tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """The head of each table, and its cells outside the first column."""
    for head, rows in re.findall(r"^(\|.*\|)\n\|[-: |]+\|\n((?:\|.*\n?)*)", text, re.MULTILINE):
        yield head, [cell.strip() for row in rows.splitlines() for cell in row.strip("|").split("|")[1:]]


def undated(page: str, text: str) -> list[str]:
    """Heads of tables of which a third of the cells are figures, without a date or without a commit."""
    found = []
    for head, cells in tables(text):
        figures = sum(FIGURE.match(cell) is not None for cell in cells)
        exact = head.strip("| ").split(" |")[0] in EXACT.get(page, ())
        if cells and 3 * figures >= len(cells) and not exact and not (DATE.search(head) and STATE.search(head)):
            found.append(head)
    return found


def undirected(page: str, text: str) -> list[str]:
    """Heads of tables of measured figures of which neither they nor the section before them say which is better.

    docs/notes/index.md says it of notes. Counts of tests passed say it by themselves.
    """
    found = []
    for section in re.split(r"^##? .*$", text, flags=re.MULTILINE):
        for head, cells in tables(section):
            figures = sum(FIGURE.match(cell) is not None for cell in cells)
            measured = 3 * figures >= len(cells) > 0 and DATE.search(head) and "passed" not in head
            before = section[: section.index(head) + len(head)]
            if measured and not page.startswith("docs/notes/") and not BETTER.search(before):
                found.append(head)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_figures_say_what_is_better(page: Path) -> None:
    assert undirected(page.relative_to(ROOT).as_posix(), page.read_text()) == []


def test_an_undirected_table_is_found() -> None:
    table = "## Times\n\n{}\n\n| H200, 2026-11-22: M x N | us |\n| --- | --- |\n| 16 x 16 | 4.2 |\n"
    assert undirected("docs/a.md", table.format("Less is better.")) == []
    assert undirected("docs/a.md", table.format("Less is better.\n\n## Other")) == ["| H200, 2026-11-22: M x N | us |"]
    assert undirected("docs/notes/a.md", table.format("Times.")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_figures_are_dated(page: Path) -> None:
    assert undated(page.relative_to(ROOT).as_posix(), page.read_text()) == []


def test_an_undated_table_is_found() -> None:
    table = "| {} | us |\n| --- | --- |\n| 16 x 16 | 4.2 |\n"
    assert undated("docs/a.md", table.format("M x N")) == ["| M x N | us |"]
    assert undated("docs/a.md", table.format("H200, 2026-11-22: M x N")) == ["| H200, 2026-11-22: M x N | us |"]
    assert undated("docs/a.md", table.format("H200, 2026-11-22, 6f27378: M x N")) == []
    assert undated("docs/a.md", table.format("predicted 2026-11-22: M x N")) == []
