"""How results of the first product of packed weights leave a thread, as nvcc compiles it."""

import re
import subprocess
from pathlib import Path

import pytest

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.locations import kernels_dir
from gemmill.space.names import parse_name
from gemmill.vocab import Arch

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("name", ["mxfp4_t8", "nvfp4_sparse16_t16wo"])
def test_no_result_is_stored_in_bytes(toolchain: ToolchainPaths, tmp_path: Path, name: str) -> None:
    """nvcc 13.0 made bytes of a copied pair of bf16, one of them by a conversion to u8."""
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text(emit(parse_name(f"sm90a_fusedfp4experts_{name}")).text)
    flags = expand(flags_for(Arch.SM90A).cuda, roots_of(toolchain, kernels_dir()))
    folders = [f"-I{folder}" for folder in toolchain.include_dirs]
    subprocess.run([toolchain.nvcc, *flags, *folders, "-cubin", source, "-o", cubin], check=True)
    code = subprocess.run([toolchain.cuobjdump, "-sass", cubin], check=True, capture_output=True, text=True).stdout
    assert len(re.findall(r"Function : ", code)) == 3
    assert not re.findall(r"STG\S*\.U8|F2I\.U8", code)
