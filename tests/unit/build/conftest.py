"""A toolkit that compiles in milliseconds: scripts in place of nvcc and cuobjdump, steered by files in a folder."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemmill.build import toolchain
from gemmill.build.options import BuildOptions
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.locations import kernels_dir
from gemmill.space.selections import Selection
from gemmill.vocab import Arch

_FAKE_NVCC = Path(__file__).with_name("fake_nvcc.py")
_FAKE_CUOBJDUMP = Path(__file__).with_name("fake_cuobjdump.py")
_BINDING = '#include "scaled_mm/abi.h"\nextern "C" const int gemmill_kernel_count;\nint binding() { return gemmill_kernel_count; }\n'


@dataclass(frozen=True, kw_only=True)
class FakeToolkit:
    """A toolkit folder and the calls of its compiler."""

    home: Path
    cutlass: Path

    @property
    def control(self) -> Path:
        """Files here change nvcc's behaviour: see fake_nvcc.py."""
        return self.home / "control"

    def calls(self) -> list[list[str]]:
        """The variants of each compilation so far, in order."""
        log = self.home / "calls.log"
        return [line.split() for line in log.read_text().splitlines()] if log.is_file() else []

    def set(self, name: str, text: str = "") -> None:
        """Make nvcc behave in a way from now on."""
        (self.control / name).write_text(text)

    def unset(self, name: str) -> None:
        """Make nvcc behave as before."""
        (self.control / name).unlink()


def make_toolkit(home: Path) -> FakeToolkit:
    """A fake toolkit below a new folder."""
    for folder in ("bin", "include", "lib", "control"):
        (home / folder).mkdir(parents=True)
    for name, script in (("nvcc", _FAKE_NVCC), ("cuobjdump", _FAKE_CUOBJDUMP), ("nvdisasm", _FAKE_CUOBJDUMP)):
        path = home / "bin" / name
        path.write_text(f"#!{sys.executable} -IS\n" + script.read_text())
        path.chmod(0o755)
    (home / "include" / "cuda_runtime.h").write_text("// CUDA\n")
    subprocess.run(["ar", "rcs", str(home / "lib" / "libcudart_static.a")], check=True)
    include = home / "cutlass" / "include" / "cutlass"
    include.mkdir(parents=True)
    (include / "version.h").write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n")
    (include / "cutlass.h").write_text("// CUTLASS\n")
    # Files of this very moment are digested again each time; a toolkit is older than its first use.
    for path in home.rglob("*"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    return FakeToolkit(home=home, cutlass=home / "cutlass")


@pytest.fixture(scope="session")
def torch_of_nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torch's folder with empty libraries: the linker takes half a second to read the names in torch's own."""
    root = tmp_path_factory.mktemp("torch")
    (root / "lib").mkdir()
    (root / "include").symlink_to(toolchain._find_torch() / "include")
    for name in ("torch", "torch_cpu", "c10"):
        library = root / "lib" / f"lib{name}.so"
        command = ["g++", "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{library.name}", "-o", str(library)]
        subprocess.run(command, check=True)
    return root


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_of_nothing: Path) -> FakeToolkit:
    """The fake toolkit, named by the environment; no launcher, whatever the machine has."""
    result, found = make_toolkit(tmp_path / "toolkit"), toolchain._find_torch
    monkeypatch.setattr(toolchain, "_find_torch", lambda: torch_of_nothing if found() else None)
    monkeypatch.setenv("GEMMILL_CUDA_HOME", str(result.home))
    monkeypatch.setenv("GEMMILL_CUTLASS_HOME", str(result.cutlass))
    monkeypatch.setenv("GEMMILL_COMPILER_LAUNCHER", "none")
    monkeypatch.setenv("GEMMILL_HOME", str(tmp_path / "home"))
    return result


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A folder of hand-written sources: the real headers, a binding that needs no torch."""
    folder = tmp_path / "kernels"
    headers = shutil.ignore_patterns("*.cpp")
    shutil.copytree(kernels_dir(), folder, ignore=headers)
    (folder / "extension" / "binding.cpp").write_text(_BINDING)
    return folder


@pytest.fixture
def options(tmp_path: Path, kernels: Path) -> BuildOptions:
    """Options of a build in a new home."""
    return BuildOptions(home=tmp_path / "home", jobs=2, kernels=kernels)


@pytest.fixture
def make_selection(make_config: Callable[..., KernelConfig]) -> Callable[..., Selection]:
    """A selection of kernels that differ in their tile's rows."""

    def make(*rows: int, name: str = "test") -> Selection:
        configs = tuple(make_config(tile_shape_mnk=(m, 128, 128)) for m in rows)
        return Selection(name=name, arch=Arch.SM90A, configs=configs, rejections=())

    return make
