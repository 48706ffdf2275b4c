"""The worked diffs apply to the tree, and the assertions of their pages hold: docs/contributing/op.md, docs/contributing/axis.md,
docs/contributing/main_loop.md and docs/contributing/family.md."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
_BLOCK = re.compile(r"^```(sh|diff|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_kind_has_its_page() -> None:
    assert [page.stem for page in PAGES] == ["axis", "family", "main_loop", "op"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_worked_diff_applies(page: Path, tmp_path: Path) -> None:
    for folder in ("generator", "kernels", "templates", "tests/toy"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = _BLOCK.findall(page.read_text())
    assert [kind for kind, _ in blocks][-2:] == ["diff", "python"]
    paths = {
        "PYTHONPATH": f"{tmp_path / 'generator'}{os.pathsep}{tmp_path / 'tests'}",
        "GEMMILL_HOME": str(tmp_path / "home"),
    }
    for kind, text in blocks:
        command = {
            "sh": ["bash", "-e"],
            "diff": ["git", "apply", "-"],
            "python": [sys.executable, "-"],
        }[kind]
        done = subprocess.run(command, input=text, text=True, capture_output=True, cwd=tmp_path, env=os.environ | paths)
        assert done.returncode == 0, f"{kind} of {page.name}: {done.stdout}{done.stderr}"
