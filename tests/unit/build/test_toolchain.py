"""The search for the toolchain, and the sentences where something is missing."""

import os
import shutil
from pathlib import Path

import pytest

from gemmill.build import toolchain
from gemmill.build.errors import BuildError
from gemmill.build.toolchain import find_toolchain
from gemmill.locations import installed

from .conftest import FakeToolkit, make_toolkit

INSTALL = "install it with `pip install 'gemmill[toolchain]'`, or name a toolkit with GEMMILL_CUDA_HOME"


def test_order(toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: make_toolkit(tmp_path / name) for name in ("wheels", "system", "path")}
    monkeypatch.setattr(toolchain, "_wheel_homes", lambda: [places["wheels"].home])
    monkeypatch.setenv("CUDA_HOME", str(places["system"].home))
    monkeypatch.setenv("PATH", str(places["path"].home / "bin"), prepend=os.pathsep)

    def found() -> tuple[str, Path]:
        result = find_toolchain()
        return result.found_by, result.home

    assert found() == ("GEMMILL_CUDA_HOME", toolkit.home)
    monkeypatch.delenv("GEMMILL_CUDA_HOME")
    assert found() == ("PyPI wheels", places["wheels"].home)
    shutil.rmtree(places["wheels"].home)
    assert found() == ("CUDA_HOME", places["system"].home)
    monkeypatch.delenv("CUDA_HOME")
    assert found() == ("PATH", places["path"].home)


def test_script_on_path_that_starts_nvcc(toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_wheel_homes", list)
    monkeypatch.delenv("GEMMILL_CUDA_HOME")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    (tmp_path / "wrapper" / "bin").mkdir(parents=True)
    script = tmp_path / "wrapper" / "bin" / "nvcc"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --dryrun ] && echo "#$ TOP={toolkit.home}/bin/.." && exit\nexec {toolkit.home}/bin/nvcc "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    assert find_toolchain().home == toolkit.home.resolve()


def test_facts(toolkit: FakeToolkit) -> None:
    found = find_toolchain()
    assert (found.nvcc_version, found.cuda_major, found.cutlass_version) == ("13.0.88", 13, "4.2.0")
    assert found.cuobjdump == toolkit.home / "bin" / "cuobjdump" and found.cudart_static.name == "libcudart_static.a"
    assert found.gxx.name == "g++" and "g++" in found.gxx_version
    assert (found.torch_include / "torch" / "csrc" / "stable").is_dir() and list(found.torch_lib.glob("libtorch_cpu*"))


def test_no_compiler(toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_wheel_homes", list)
    monkeypatch.delenv("GEMMILL_CUDA_HOME")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert str(caught.value) == (
        f"no CUDA compiler: none named by GEMMILL_CUDA_HOME, in the PyPI wheels, below CUDA_HOME or on PATH; {INSTALL}"
    )


def test_named_toolkit_without_compiler(toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert (
        str(caught.value)
        == f"no CUDA compiler at {tmp_path}/bin/nvcc, which GEMMILL_CUDA_HOME names: correct it, or unset it"
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("release 12.4, V12.4.131", f"{{}} is CUDA 12.4.131, gemmill builds with 12.9 or later: {INSTALL}"),
        ("clang version 19\nmore", f"{{}} --version printed no version ('clang version 19'): {INSTALL}"),
    ],
)
def test_wrong_compiler(toolkit: FakeToolkit, version: str, expected: str) -> None:
    toolkit.set("version", version)
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert str(caught.value) == expected.format(toolkit.home / "bin" / "nvcc")


def test_compiler_that_does_not_start(toolkit: FakeToolkit) -> None:
    (toolkit.home / "bin" / "nvcc").write_bytes(b"\x7fELF")
    with pytest.raises(
        BuildError, match=r"^cannot run .*/bin/nvcc \(.+\): reinstall it, or name a toolkit with GEMMILL_CUDA_HOME$"
    ):
        find_toolchain()


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (
            "bin/cuobjdump",
            r"no cuobjdump in .*/bin, in the PyPI wheels or on PATH: install it with `pip install nvidia-cuda-cuobjdump`",
        ),
        (
            "bin/nvdisasm",
            r"no nvdisasm in .*/bin, in the PyPI wheels or on PATH: install it with `pip install nvidia-cuda-nvdisasm`",
        ),
        (
            "lib/libcudart_static.a",
            r"no libcudart_static\.a in .*/lib: install it with `pip install nvidia-cuda-runtime`, or name a",
        ),
        (
            "cutlass/include/cutlass/version.h",
            r"no CUTLASS at .*, which GEMMILL_CUTLASS_HOME names: it has no include/cutlass/version\.h",
        ),
    ],
)
def test_missing_part(toolkit: FakeToolkit, missing: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (toolkit.home / missing).unlink()
    monkeypatch.setattr(toolchain, "_wheel_homes", list)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: which(name) if name == "g++" else None)
    with pytest.raises(BuildError, match=expected):
        find_toolchain()


def test_inspection_tool_of_another_release(
    toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = make_toolkit(tmp_path / "wheels")
    monkeypatch.setattr(toolchain, "_wheel_homes", lambda: [wheels.home])
    (toolkit.home / "bin" / "cuobjdump").unlink()
    found = find_toolchain()
    assert (found.nvcc, found.cuobjdump) == (toolkit.home / "bin" / "nvcc", wheels.home / "bin" / "cuobjdump")


def test_no_host_compiler(toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert (
        str(caught.value) == "no host C++ compiler: g++ is not on PATH; install it, for example with `apt install g++`"
    )


@pytest.mark.parametrize(
    ("package", "message"), [("torch", "no torch to link against"), ("cutlass_library", "no CUTLASS headers")]
)
def test_missing_package(toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, package: str, message: str) -> None:
    monkeypatch.setattr(toolchain, "installed", lambda name: [] if name == package else installed(name))
    monkeypatch.delenv("GEMMILL_CUTLASS_HOME")
    if package == "torch":
        monkeypatch.setenv("GEMMILL_CUTLASS_HOME", str(toolkit.cutlass))
    with pytest.raises(BuildError, match=f"^{message}: install (it|them) with `pip install"):
        find_toolchain()
