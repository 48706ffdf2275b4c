"""The docs as a site: it is built without a warning, its links hold, and every public function is on it."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

import gemmill.compat.deep_gemm
import gemmill.compat.lightx2v
import gemmill.nn
import gemmill.public
import gemmill.quantize
from gemmill.registry import REGISTRY

pytest.importorskip("mkdocs", reason="pip install 'gemmill[docs]'")
pytest.importorskip("material", reason="pip install 'gemmill[docs]'")
pytest.importorskip("mkdocstrings", reason="pip install 'gemmill[docs]'")

ROOT = Path(__file__).parents[2]


class _Page(HTMLParser):
    """A page's links, its anchors, and the files that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.places |= {told[name] for name in ("id", "name") if name in told}
        target = told.get("href") or told.get("src")
        if target and not (tag == "link" and told.get("rel") == "canonical"):
            (self.links if tag == "a" else self.fetched).append(unquote(target))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(ROOT / "generator"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_hold_and_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, _Page]) -> None:
    assert len(pages) > 30
    for path, page in pages.items():
        for target in (*page.links, *page.fetched):
            if target.startswith(("http:", "https:")):
                assert target not in page.fetched, f"{path.name} fetches {target}"
                continue
            file, _, place = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            found = found / "index.html" if found.is_dir() else found
            assert found.is_file() and found.is_relative_to(site), f"{path.name} points to {target}"
            if place and found in pages:
                assert place in pages[found].places, f"{path.name} points to {target}"


def test_every_public_function_is_in_the_api(site: Path, pages: dict[Path, _Page]) -> None:
    shown = {place.rpartition(".")[2] for path in site.glob("api*.html") for place in pages[path].places}
    assert set(gemmill.public.__all__) - {"__version__"} <= shown
    for module in (gemmill.quantize, gemmill.nn, gemmill.compat.deep_gemm, gemmill.compat.lightx2v):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= pages[site / "api.html"].places


def test_every_op_is_listed(site: Path) -> None:
    listed = (site / "ops.html").read_text()
    assert all(f"<code>{op.schema.name}</code>" in listed for family in REGISTRY.families for op in family.asks.ops)


def test_each_family_has_a_page_with_tables_of_parameters(site: Path) -> None:
    for family in REGISTRY.families:
        if family.functions is not None:
            page = (site / f"api_{family.name}.html").read_text()
            assert page.count("<th>parameter</th>") == len(import_module(family.functions).__all__)
    assert "<code>out_dtype</code></td>\n<td><code>torch.dtype</code>" in (site / "api_scaled_mm.html").read_text()


def test_notes_rank_last_in_the_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {entry["location"].startswith("notes/"): set() for entry in entries}
    for entry in entries:
        boosts[entry["location"].startswith("notes/")].add(entry.get("boost", 1))
    assert boosts == {True: {0.1}, False: {1}}
