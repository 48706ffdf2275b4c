"""The output of cuobjdump for a shared library of nvcc's."""

import re
import subprocess
from pathlib import Path

import pytest

from gemmill.build.errors import BuildError
from gemmill.build.sass import architectures, disassemble
from gemmill.build.toolchain import ToolchainPaths, find_toolchain

pytestmark = pytest.mark.compile

KERNEL = (
    'extern "C" __global__ void gemmill_probe_kernel(float* x) { x[threadIdx.x] *= 2.f; }\n'
    'extern "C" __global__ void gemmill_probed_kernel(float* x) { x[threadIdx.x] *= 3.f; }\n'
)


@pytest.fixture(scope="module")
def toolchain() -> ToolchainPaths:
    try:
        return find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def library(toolchain, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sass")
    source, path = folder / "probe.cu", folder / "probe.so"
    source.write_text(KERNEL)
    includes = [f"-I{folder}" for folder in toolchain.include_dirs]
    libraries = [f"-L{folder}" for folder in toolchain.lib_dirs]
    flags = ["-shared", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_90a,code=sm_90a", "-cudart", "static"]
    subprocess.run([toolchain.nvcc, *flags, *includes, *libraries, source, "-o", path], check=True)
    return path


def test_architectures(library, toolchain) -> None:
    assert architectures(library, toolchain.cuobjdump) == ("sm_90a",)


def test_disassembly_of_one_kernel(library, toolchain) -> None:
    text = disassemble(library, toolchain.cuobjdump, "probe")
    assert re.findall(r"Function : (\S+)", text) == ["gemmill_probe_kernel"], "the other lies beside it"
    assert re.search(r"\bFMUL|FADD\b", text)


def test_a_kernel_that_is_not_there(library, toolchain) -> None:
    with pytest.raises(BuildError) as caught:
        disassemble(library, toolchain.cuobjdump, "other")
    assert (
        str(caught.value) == f"{library} has no kernel of other: it was built from other sources, run `gemmill build`"
    )


def test_a_file_that_is_not_a_library(toolchain, tmp_path) -> None:
    path = tmp_path / "text.so"
    path.write_text("not machine code")
    with pytest.raises(BuildError, match=rf"^cuobjdump failed on {path}: "):
        architectures(path, toolchain.cuobjdump)


def test_no_cuobjdump(library, tmp_path) -> None:
    with pytest.raises(BuildError) as caught:
        architectures(library, tmp_path / "cuobjdump")
    assert str(caught.value) == (
        f"{tmp_path / 'cuobjdump'} cannot be run (No such file or directory): name another toolkit with GEMMILL_CUDA_HOME"
    )
