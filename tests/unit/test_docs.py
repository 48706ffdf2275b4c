"""The guide against the code: what it names exists."""

import re
from pathlib import Path

import pytest
import typer

from gemmill import settings
from gemmill.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
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


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_settings(page: Path) -> None:
    known = set(re.findall(r'"(GEMMILL_\w+)"', Path(settings.__file__).read_text()))
    assert set(re.findall(r"\b(GEMMILL_\w+)", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_verbs(page: Path) -> None:
    command = typer.main.get_command(app)
    for verb in re.findall(r"(?:`|^    )gemmill ([a-z]+)", page.read_text(), re.MULTILINE):
        assert verb in command.commands, verb


def test_every_verb_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"| `gemmill {verb}" in guide for verb in typer.main.get_command(app).commands)


def test_contributing_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 150
