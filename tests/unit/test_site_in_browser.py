"""tools/site_in_browser.py: what it tells of pages that are right and wrong, where there is a Chromium."""

import importlib.util
import shutil
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "site_in_browser.py"
HEAD = """<!doctype html><title>a page</title><link rel="icon" href="data:,"><meta name="color-scheme" content="light dark"><style>
body { background: white; color: black; } @media (prefers-color-scheme: dark) { body { background: black; color: white; } }
</style><article>"""
PAGES = {
    "right.html": "<p>Text.</p><div style='overflow-x: auto'><div style='width: 2000px'>A table that scrolls in itself.</div></div>",
    "notes/wide.html": "<p style='width: 600px'>Text.</p>",
    "pale.html": "<p style='color: #999; background: #aaa'>Pale text.</p><p style='font-size: 30px; color: #767676'>Large text.</p>",
    "broken.html": "<img src='none.png' width='10' height='10'>",
}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("site_in_browser", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name, text in PAGES.items() | {("404.html", "")}:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(HEAD + text)
    return folder


def test_pages_are_chosen_by_their_paths(tool, site) -> None:
    assert list(tool.pages(site, [])) == ["broken.html", "notes/wide.html", "pale.html", "right.html"]
    assert list(tool.pages(site, ["notes/*", "r*"])) == ["notes/wide.html", "right.html"]


def test_faults_are_told_and_pictures_written(tool, site, tmp_path) -> None:
    program = next(filter(None, map(shutil.which, tool.BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium here")
    told = {}
    with tool.served(site) as origin, tool.closing(tool.Browser(program, tmp_path / "profile")) as browser:
        for name, width, scheme in (
            ("right.html", 420, "dark"),
            ("right.html", 1280, "light"),
            ("notes/wide.html", 420, "light"),
            ("pale.html", 1280, "light"),
            ("broken.html", 1280, "light"),
        ):
            told[name, width, scheme] = browser.look(origin, name, width, scheme, tmp_path / f"{width}.png")
    assert told["right.html", 420, "dark"] == told["right.html", 1280, "light"] == []
    assert told["notes/wide.html", 420, "light"][-1] == 'p "Text." ends at 608'
    assert told["pale.html", 1280, "light"] == ['p "Pale text." has a contrast of 1.2']
    assert told["broken.html", 1280, "light"][-1] == "picture none.png is not shown"
    assert (tmp_path / "420.png").read_bytes().startswith(b"\x89PNG")
