"""What `gemmill export` writes of a built kernel compiles by its own script; without a GPU it says so and ends."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gemmill
from gemmill import settings
from gemmill.build.options import BuildResult
from gemmill.build.toolchain import ToolchainPaths
from gemmill.cli.export import export

EXAMPLES = [
    line.strip() for line in re.findall(r"^ *gemmill .*$", export.__doc__ or "", re.MULTILINE) if "--hf" not in line
]
OF_THE_DSL = 'gemmill export "*cutedsl_e4m3*groupblock128strided_t64x16x256*" -m 64 -n 256 -k 512'


@pytest.mark.parametrize("line", [*EXAMPLES, OF_THE_DSL])
def test_a_reproducer_compiles_and_runs(
    smoke: BuildResult, toolchain: ToolchainPaths, tmp_path: Path, line: str
) -> None:
    tools = os.pathsep.join([str(toolchain.home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": tools,
        "PYTHONPATH": str(Path(gemmill.__file__).parents[1]),
        "GEMMILL_HOME": str(settings.home()),
        "GEMMILL_BUILD": smoke.manifest.build_id,
        "CUTLASS_INCLUDE": str(toolchain.cutlass_include),
        "LIBRARY_PATH": str(toolchain.cudart_static.parent),
    }

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        words = list(map(str, command))
        return subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    outcome = run(sys.executable, "-m", *shlex.split(line))
    assert outcome.returncode == 0, outcome.stderr
    (folder,) = tmp_path.iterdir()
    done = run(folder / "build.sh")
    assert (folder / "reproducer").is_file(), done.stderr
    if torch.cuda.is_available():
        assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("right; "), done.stdout + done.stderr
    else:
        assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("device: "), done.stderr
