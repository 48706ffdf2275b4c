"""`python -m build`: what the source distribution and the wheel made of it hold, and that the wheel runs alone."""

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gemmill.version import __version__

pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
DATA = ("kernels", "templates", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "THIRD_PARTY.md")
"""What the generator reads beside its package."""


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


def test_the_source_distribution_is_whole(written: tuple[Path, Path]) -> None:
    with tarfile.open(written[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (*DATA, "generator", "docs", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile"):
        assert _files(wanted) <= names, wanted
    assert not [name for name in names if name.startswith((".venv", ".gemmill", "tests", "emitted"))]


def test_the_wheel_has_generator_and_data(written: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(written[1]) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"gemmill-{__version__}.dist-info/METADATA"))
    assert {name.removeprefix("generator/") for name in _files("generator")} <= names
    for wanted in DATA:
        assert {f"gemmill/_data/{name}" for name in _files(wanted)} <= names, wanted
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Requires-Dist")[0] == "torch>=2.11"
    assert {"toolchain", "build", "dsl", "cli", "tune"} <= set(metadata.get_all("Provides-Extra"))


def test_the_wheel_generates_alone(written: tuple[Path, Path], tmp_path: Path) -> None:
    """It emits the sources that the checkout has, with no checkout beside it."""
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
