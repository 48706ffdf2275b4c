"""tools/site_in_browser.py: which pages it loads."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "site_in_browser.py"
PAGES = ("404.html", "broken.html", "notes/wide.html", "right.html")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("site_in_browser", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name in PAGES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


def test_pages_are_chosen_by_their_paths(tool, site) -> None:
    assert list(tool.pages(site, [])) == ["broken.html", "notes/wide.html", "right.html"]
    assert list(tool.pages(site, ["notes/*", "r*"])) == ["notes/wide.html", "right.html"]
