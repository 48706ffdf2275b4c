"""`python -m build`: the contents of the source distribution and of the wheel made of it, and that the wheel runs alone."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from gemmill.version import __version__

pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["gemmill"]
DATA = ("kernels", "templates", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "THIRD_PARTY.md")
"""The folders that the generator reads besides its package."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The two files, the wheel made of the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / f"gemmill-{__version__}.tar.gz", out / f"gemmill-{__version__}-py3-none-any.whl"


def _files(folder: str) -> set[str]:
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in found} or {folder}


def test_the_contact_is_the_one_that_is_set() -> None:
    assert re.findall(r"[\w.]+@[\w.]+\w", (ROOT / "SECURITY.md").read_text()) == [SETTINGS["contact"]]


def test_measured_versions_are_those_of_the_environment() -> None:
    """The extra cu130 has the versions of constraints.txt."""
    pinned = [line for line in PROJECT["project"]["optional-dependencies"]["cu130"] if "==" in line]
    known = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(pinned) == 6 and {line.replace("[cu13]", "") for line in pinned} <= set(known)


def test_the_source_distribution_is_whole(written: tuple[Path, Path]) -> None:
    with tarfile.open(written[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (*DATA, "generator", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "tools/hatch_metadata.py"):
        assert _files(wanted) <= names, wanted
    work = (".venv", ".gemmill", "tests", "emitted", "docs", "mkdocs.yml", "Makefile", "constraints.txt", "benchmarks")
    assert not [name for name in names if name.startswith(work)], "what works in a repository alone"


def test_the_wheel_has_generator_and_data(written: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(written[1]) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"gemmill-{__version__}.dist-info/METADATA"))
    assert {name.removeprefix("generator/") for name in _files("generator")} <= names
    for wanted in DATA:
        assert {f"gemmill/_data/{name}" for name in _files(wanted)} <= names, wanted
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"Homepage, {SETTINGS['repository']}" in metadata.get_all("Project-URL")
    assert not re.search(r"\]\((?!https://)", metadata.get_payload()), "a link that an index of packages cannot follow"
    assert f'<img src="{SETTINGS["repository"]}/raw/main/docs/images/' in metadata.get_payload()
    assert metadata.get_all("Requires-Dist")[0] == "torch>=2.11"
    assert {"toolchain", "cu130", "dsl", "cli", "tune"} <= set(metadata.get_all("Provides-Extra"))


def test_the_wheel_generates_alone(written: tuple[Path, Path], tmp_path: Path) -> None:
    """It emits the sources that the checkout has, without a checkout."""
    with zipfile.ZipFile(written[1]) as archive:
        archive.extractall(tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "GEMMILL_HOME": str(tmp_path / "home")}
    name = "sm90a_quant_rmstoken_bf16_e4m3_none_f32_sym"
    command = [sys.executable, "-m", "gemmill", "generate", "--filter", name, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "out").rglob(f"{name}.cu")
    (committed,) = (ROOT / "emitted").rglob(f"{name}.cu")
    assert made.read_bytes() == committed.read_bytes()
