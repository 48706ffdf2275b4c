"""Headers of all families in one source, as a unit of variants of several families has them."""

import subprocess
from pathlib import Path

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch


def test_headers_of_all_families_go_together(toolchain: ToolchainPaths, tmp_path: Path) -> None:
    """Each alone is tested by every variant: two that name the same thing meet first in a whole build, which takes minutes."""
    headers = [path.relative_to(kernels_dir()) for path in sorted(kernels_dir().rglob("*.cuh"))]
    of_families = [header.as_posix() for header in headers if header.parent.name != "core"]
    source = tmp_path / "together.cu"
    source.write_text("".join(f'#include "{header}"\n' for header in of_families))
    flags = expand(flags_for(Arch.SM90A).cuda, roots_of(toolchain, kernels_dir()))
    command = [toolchain.nvcc, *flags, *(f"-I{folder}" for folder in toolchain.include_dirs), "-ptx", source]
    done = subprocess.run([*command, "-o", tmp_path / "together.ptx"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
