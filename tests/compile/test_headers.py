"""Headers of a family in one source, as a unit of several variants has them."""

import subprocess
from pathlib import Path

import pytest

from gemmill.build.errors import BuildError
from gemmill.build.sources import expand, roots_of
from gemmill.build.toolchain import find_toolchain
from gemmill.locations import kernels_dir

pytestmark = pytest.mark.compile

FAMILIES = sorted({path.parent.name for path in kernels_dir().glob("*/*.cuh")} - {"core"})


@pytest.mark.parametrize("family", FAMILIES)
def test_headers_of_a_family_go_together(family: str, tmp_path: Path) -> None:
    """Each alone is tested by every variant: two that name the same thing meet first in a whole build, which takes minutes."""
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    headers = sorted(path.name for path in (kernels_dir() / family).glob("*.cuh"))
    source = tmp_path / "together.cu"
    source.write_text("".join(f'#include "{family}/{name}"\n' for name in headers))
    flags = [
        "-std=c++17",
        "-gencode=arch=compute_90a,code=sm_90a",
        "--expt-relaxed-constexpr",
        "-ptx",
        f"-I{kernels_dir()}",
    ]
    folders = [f"-I{folder}" for folder in toolchain.include_dirs] + expand(
        ["-I<cutlass>"], roots_of(toolchain, kernels_dir())
    )
    command = [toolchain.nvcc, *flags, *folders, source, "-o", tmp_path / "together.ptx"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
