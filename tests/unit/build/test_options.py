"""How many compilers run at a time, and the options of a build."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gemmill import locations, settings
from gemmill.build import options as module
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"), [(2, 24, 2), (16, 24, 4), (16, 3, 1), (1, 100, 1), (64, 512, 64)]
)
def test_jobs_are_capped_by_memory(monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, expected: int) -> None:
    monkeypatch.delenv("GEMMILL_JOBS", raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(cores)))
    monkeypatch.setattr(module, "free_memory", lambda: gigabytes << 30)
    assert BuildOptions().job_count == expected


def test_memory_of_a_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_GROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 30))
    assert module.free_memory() == 16 << 30
    (tmp_path / "memory.max").write_text("9000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert module.free_memory() == 8000
    (tmp_path / "memory.max").write_text("max\n")
    assert module.free_memory() == 16 << 30


def test_jobs_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_JOBS", "3")
    assert BuildOptions().job_count == 3 and BuildOptions(jobs=5).job_count == 5
    monkeypatch.setenv("GEMMILL_JOBS", "many")
    with pytest.raises(BuildError, match=r"^GEMMILL_JOBS is 'many': it must be a whole number of at least 1$"):
        _ = BuildOptions().job_count


def test_contradictions() -> None:
    with pytest.raises(ValueError, match="jobs=0: at least 1 is needed"):
        BuildOptions(jobs=0)
    with pytest.raises(ValueError, match="max_size=0: it is a number of bytes, at least 1"):
        BuildOptions(max_size=0)


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GEMMILL_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.home() == Path(__file__).parents[3] / ".gemmill", "make and bare commands have one home"
    monkeypatch.setattr(locations, "checkout", lambda: None)
    assert settings.home() == tmp_path / ".cache" / "gemmill"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings.home() == tmp_path / "xdg" / "gemmill" == BuildOptions().home_dir
    monkeypatch.setenv("GEMMILL_HOME", "~/mine")
    assert settings.home() == tmp_path / "mine"
    assert BuildOptions(home=Path("/other")).home_dir == Path("/other")
