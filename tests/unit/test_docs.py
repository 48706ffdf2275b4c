"""The guide against the code: its links, figures and programs. Its sentences, and those of docstrings and help, are short."""

import ast
import inspect
import json
import math
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import figures
import gemmill.public
from gemmill.arithmetic import OF_E4M3
from gemmill.cli.app import app
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name
from sentences import sentences, words

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MOST_WORDS = 35
MOST_WORDS_OF_HELP = 35
"""An option's help names what can be given, and a docstring inside the package what a value holds."""
KEYED = ("/gemmill/gemm/", "/gemmill/vocab/", "/dsl/", "/config.py")
"""Of the package: compiled objects are found by the bytes of these files, so their prose changes when their code does."""
FOLDERS = ("generator", "templates", "kernels", "benchmarks", "tests", "tools", "docs")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_and_paths(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


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
    """What it is stands in the first paragraph; what comes before the first program is as long as a screen."""
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
    name = re.search(r"benchmarks/results/[\w.-]+\.json", page)[0]
    record = json.loads((ROOT / name).read_text())
    assert figures.page(page, record, name) == page, "benchmarks/figures.py writes it"
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} == set(figures.PICTURES)
    for name, draw in figures.PICTURES.items():
        assert draw(record) == (ROOT / "docs" / "images" / name).read_text()
    assert record["date"][:10] in page and record["commit"][:7] in page


def test_every_room_is_in_the_architecture() -> None:
    """Packages and modules of gemmill, what each family may hold, folders of templates and kernels; none that is gone."""
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


def _long(text: str, most: int = MOST_WORDS) -> list[str]:
    """Sentences of more words than a reader takes in at once, with line and count."""
    return [f"{line}: {words(s)} words: {s}" for line, s in sentences(text) if words(s) > most]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_sentences_of_pages(page: Path) -> None:
    assert not _long(page.read_text())


@pytest.mark.parametrize("name", gemmill.public.__all__)
def test_sentences_of_docstrings(name: str) -> None:
    assert not _long(inspect.getdoc(getattr(gemmill.public, name)) or "")


PACKAGE = ROOT / "generator" / "gemmill"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not any(part in path.as_posix() for part in KEYED)]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sentences_inside_the_package(module: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, documented)]
    assert not [long for node in nodes for long in _long(ast.get_docstring(node) or "", MOST_WORDS_OF_HELP)]


def _helps(command: object, verb: str = "gemmill") -> dict[str, str]:
    """Help of a command, of its verbs and of their options, by what is typed."""
    own = {verb: getattr(command, "help", None) or ""}
    own |= {f"{verb} {p.name}": getattr(p, "help", None) or "" for p in getattr(command, "params", ())}
    below = (_helps(c, f"{verb} {name}") for name, c in getattr(command, "commands", {}).items())
    return own | {what: text for helps in below for what, text in helps.items()}


def test_sentences_of_help() -> None:
    helps = _helps(typer.main.get_command(app))
    assert len(helps) > 100
    assert not {what: long for what, text in helps.items() if (long := _long(text, MOST_WORDS_OF_HELP))}


MANY = " ".join(["word"] * 30)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("One two. Three, four: five; six.", [2, 4]),
        ("One (two three.) Four", [3, 1]),
        ("One, e.g. two, i.e. three. vLLM has 1.5 and 2.0.", [5, 5]),
        ("Is 3 x 4 x 5 one? `a  b. c` is. 1 + 1 are three", [3, 2, 4]),
        ("- one two\n  three\n- four\n\n  five\n", [3, 1, 1]),
        ("1. one\n   - two three\n", [1, 2]),
        ("| one | two three; four |\n| --- | --- |\n| `a` five | |\n", [1, 2, 1, 2]),
        ("One\n\n    code is no sentence\n\n```\nnor is this\n```\n", [1]),
        ("A [link to there](https://a.b/c.d) *counts.*", [5]),
        ("# Two words\nThree words here", [2, 3]),
        (f"{MANY} more", [31]),
        (f"{MANY}. More", [30, 1]),
    ],
)
def test_a_sentence_is_what_a_reader_takes_for_one(text: str, counts: list[int]) -> None:
    assert [words(sentence) for _, sentence in sentences(text)] == counts


def test_a_sentence_has_its_line() -> None:
    assert list(sentences("# A\n\nB c.\nD.\n\n- E\n")) == [(1, "A"), (3, "B c."), (3, "D."), (6, "E")]
