"""The guide against the code: its links, figures and programs, and its words."""

import math
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import figures
from gemmill.arithmetic import OF_E4M3
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name
from harness.stored import read_result
from sentences import sentences

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BANNED = {
    r"beside": "next to, compared with",
    r"what (?:is|was|are|were|has|had|came|comes)": "the noun itself: attempts, results, bytes",
    r"that (?:was|were)": "an adjective, or a clause whose subject acts",
    r"(?:is|are|was|were) (?:not )?told": "receives, reads, knows",
    r"those who|who(?:ever)? (?:loads|multiplies|sums|ends|codes|stores|waits)": "the thread, warp or CTA that does it",
    r"drawn": "random",
}
"""Private words and phrases, with the plain form."""
FOLDERS = ("generator", "templates", "kernels", "benchmarks", "tests", "tools", "docs")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_and_paths(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


OF_CONTRIBUTORS = (
    *("CONTRIBUTING.md", "THIRD_PARTY.md", "docs/architecture.md", "docs/contributing/*.md", "docs/notes/*.md"),
)
"""Pages, as patterns, that may send their reader to the notes: who changes kernels, or gives a build away."""


def into_notes(page: Path, notes: Path = ROOT / "docs" / "notes") -> list[str]:
    """Links of a page, outside of its programs, that lead into `notes`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#:]+)", text)
    return [target for target in targets if (page.parent / target).resolve().is_relative_to(notes)]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_users_are_not_sent_into_the_notes(page: Path) -> None:
    if not any(page.match(pattern) for pattern in OF_CONTRIBUTORS):
        assert into_notes(page) == [], "say it here in a line: docs/notes is for contributors"


def test_a_link_into_the_notes_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](grouped_mm.md), [b](notes/grouped_mm.md#x), [c](notes)\n\n```\n[d](notes/d.md)\n```\n")
    assert into_notes(page, tmp_path / "notes") == ["notes/grouped_mm.md", "notes"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "notes"], ids=ids)
def test_every_column_has_a_head(page: Path) -> None:
    """A table's own name stands in the head of its first column."""
    lines = page.read_text().splitlines()
    heads = [line for line, below in pairwise(lines) if re.fullmatch(r"\|( *:?-+:? *\|)+", below)]
    assert not [head for head in heads if re.search(r"\| *\|", head)]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_table_ends_before_what_follows(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^\|.*\|\n[^|\n].*", text, re.MULTILINE), (
        "an empty line ends a table, else this is a row of it"
    )


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_page_has_one_title(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def _first_column(page: str) -> list[str]:
    """The code in the first cells of a page's tables."""
    return re.findall(r"^\| `?([\w]+)`? \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)


def test_names_of_variants_are_read_back_and_every_tag_is_told_of() -> None:
    names = re.findall(r"\bsm\d+a_\w+", (ROOT / "docs" / "names.md").read_text())
    told = {parse_name(name).tag for name in names} | set(_first_column("names.md"))
    missing = {kernels.tag for family in REGISTRY.families for kernels in family.kernels} - told
    assert missing <= {"cutedsl"}, "docs/names.md says what a name's fields mean: add a row for the tag"


def test_the_quick_start_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), re.DOTALL)
    made: dict[str, object] = {}
    exec(compile(program, "quickstart.md", "exec"), made)
    out, wanted = made["out"].float(), made["layer"](made["x"]).float()
    assert (out - wanted).norm() < 0.06 * wanted.norm()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_answers_what_newcomers_ask(page: str) -> None:
    """The first paragraph says what gemmill is; the text before the first program is as long as a screen."""
    first = (ROOT / page).read_text().split("```")[0]
    asked = ("runs on my GPU", "do I install it", "do I serve a model", "fast is it", "do I add a kernel")
    assert [what for what in asked if f"{what}? |" not in first] == []
    assert (
        first.startswith("# gemmill\n\ngemmill makes ")
        and "images/peers.svg" in first
        and len(first.splitlines()) <= 25
    )


def test_the_picture_and_the_figures_are_of_one_run() -> None:
    """The first result that docs/figures.md names: date and commit stand in its text."""
    page = (ROOT / "docs" / "figures.md").read_text()
    name = re.search(r"benchmarks/results/[\w.-]+\.json\.xz", page)[0]
    record = read_result(ROOT / name)
    assert figures.page(page, record, name) == page, "benchmarks/figures.py writes it"
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} == set(figures.PICTURES)
    for name, draw in figures.PICTURES.items():
        assert draw(record) == (ROOT / "docs" / "images" / name).read_text()
    assert record["date"][:10] in page and record["commit"][:7] in page


def test_every_room_is_in_the_architecture() -> None:
    """Packages and modules of gemmill, the modules of a family, folders of templates and kernels; none that is gone."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    tables = text.split("## Layers")[0].split("\n\n| ")
    folders, packages, _ = (set(re.findall(r"`([\w./<>]+)`", "".join(_cells(table)))) for table in tables[1:4])
    gemmill_root = ROOT / "generator" / "gemmill"
    rooms = {path.name for path in gemmill_root.iterdir() if path.suffix in ("", ".py") and path.name[:2] != "__"}
    assert packages == rooms
    for parent in ("templates", "kernels"):
        named = {folder for folder in folders if folder.startswith(parent)}
        there = {f"{parent}/{path.name}/" for path in (ROOT / parent).iterdir()}
        assert there - {f"{parent}/{family.name}/" for family in REGISTRY.families} == named - {f"{parent}/<family>/"}


def test_a_family_has_one_name() -> None:
    """Folders, page and a tag; other projects' ops keep their names, and so do the backends of the first family."""
    for family in REGISTRY.families:
        folders = ("generator/gemmill/families", "kernels", "templates", "tests/families", "benchmarks/timed")
        there = {folder for folder in folders if (ROOT / folder / family.name).is_dir()}
        assert {*folders[:4]} <= there and (ROOT / "docs" / f"{family.name}.md").exists()
        assert family.name == "scaled_mm" or family.name.replace("_", "") in {of.tag for of in family.kernels}


def test_the_notes_of_a_family_have_its_name() -> None:
    """The first family's are three pages, by topic."""
    there = {path.stem for path in (ROOT / "docs" / "notes").iterdir()}
    assert {family.name for family in REGISTRY.families} - there == {"scaled_mm"}
    assert {"tiles", "tables", "cutedsl"} <= there


def test_the_layers_are_those_that_are_checked() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Layers")[1]
    told = re.search(r"\n\n((?:    .*\n)+)", text)[1].split("\n")[:-1]
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in checked if contract["type"] == "layers")
    assert [line.strip() for line in told] == [layer.replace("gemmill.", "") for layer in layers]


def _cells(table: str) -> list[str]:
    """The first cells of a table's rows."""
    return [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]


def test_the_accumulator_of_e4m3_is_told_once_with_the_bound_that_tests_use() -> None:
    (told,) = re.findall(r"^\| FP22 \| (.*) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    bits = round(-math.log2(OF_E4M3.unit))
    assert f"adds {OF_E4M3.instruction_k} products" in told and f"keeps {bits} bits below" in told
    assert f"loses less than {OF_E4M3.losses} x 2^-{bits} of the largest" in told
    for page in PAGES:
        assert not re.search(r"\b22 bits", page.read_text()), page


def test_every_extra_is_told_of() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = re.findall(
        r"gemmill\[(\w+)\]", (ROOT / "docs" / "cli.md").read_text().split("| verb |")[0].split("| none |")[1]
    )
    assert set(told) == set(extras)


def test_contributing_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 150


def banned(text: str) -> list[str]:
    """Banned words of a page in Markdown, each with its line and the plain form."""
    found = []
    for line, sentence in sentences(text):
        for phrase, plain in BANNED.items():
            if (match := re.search(rf"(?<![-`\w])(?:{phrase})(?![-`\w])", sentence, re.IGNORECASE)) is not None:
                found.append(f"{line}: write {plain!r} for {match[0]!r}: {sentence}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_pages_have_plain_words(page: Path) -> None:
    assert banned(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It ran beside vLLM.\n\nMore.", ["1: write 'next to, compared with' for 'beside': It ran beside vLLM."]),
        ("# A\n\nWhat was", ["3: write 'the noun itself: attempts, results, bytes' for 'What was': What was"]),
        ("- a\n- those who", ["2: write 'the thread, warp or CTA that does it' for 'those who': those who"]),
        ("`beside` and judge-drawn are names, and what follows is none.\n\n    beside", []),
    ],
)
def test_a_banned_word_is_found_with_its_line_and_its_plain_form(text: str, found: list[str]) -> None:
    assert banned(text) == found


def test_a_sentence_has_its_line() -> None:
    assert list(sentences("# A\n\nB c.\nD.\n\n- E\n")) == [(1, "A"), (3, "B c."), (3, "D."), (6, "E")]
