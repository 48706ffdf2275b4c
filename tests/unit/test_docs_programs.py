"""Programs of pages run as they stand there, on CPU tensors: all of a page, one after another, in one process for all pages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
ELSEWHERE = {
    "README.md": "tests/unit/quantize/test_readme.py",
    "docs/clusters.md": "tests/unit/test_clusters.py",
    "docs/quickstart.md": "tests/unit/test_docs.py",
    **{
        f"docs/contributing/{kind}.md": "tests/unit/test_contributing.py"
        for kind in ("axis", "family", "main_loop", "op")
    },
    "docs/kv_cache.md": "tests/unit/nn/test_compressed_cache.py",
    "docs/layers.md": "tests/unit/nn/test_guide.py",
    "docs/weights.md": "tests/unit/quantize/test_guide.py",
}
"""Pages whose programs another test runs, which also checks their results."""
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if PROGRAM.search(page.read_text()) and page.relative_to(ROOT).as_posix() not in ELSEWHERE
]
RUN_ALL = """
import json, runpy, sys, traceback
failed = {}
for path in sys.argv[2:]:
    try:
        runpy.run_path(path)
    except BaseException:
        failed[path] = traceback.format_exc()
with open(sys.argv[1], "w") as file:
    json.dump(failed, file)
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The traceback of each page that failed."""
    folder = tmp_path_factory.mktemp("programs")
    files = {}
    for page in PAGES:
        files[page] = folder / f"{page.replace('/', '_')}.py"
        files[page].write_text("\n".join(PROGRAM.findall((ROOT / page).read_text())))
    path = os.pathsep.join([str(ROOT / "generator"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "GEMMILL_HOME": str(folder / "home"), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", RUN_ALL, folder / "failed.json", *files.values()]
    subprocess.run(list(map(str, command)), env=environment, cwd=folder, check=True, capture_output=True)
    told = json.loads((folder / "failed.json").read_text())
    return {page: told[str(file)] for page, file in files.items() if str(file) in told}


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page: str, failed: dict[str, str]) -> None:
    assert page not in failed, failed[page]


def test_other_pages_have_a_test_of_their_own() -> None:
    for page, test in ELSEWHERE.items():
        assert PROGRAM.search((ROOT / page).read_text()), page
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), page
