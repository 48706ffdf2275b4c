"""The folder that `gemmill export` writes compiles by its own script; without a GPU the program says so and ends."""

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
from gemmill.runtime.dumps import Dumps
from gemmill.runtime.library import Build
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import Choice

EXAMPLES = [
    line.strip()
    for line in re.findall(r"^ *gemmill .*$", export.__doc__ or "", re.MULTILINE)
    if "--hub" not in line and "--from" not in line
]
SAVED = "gemmill export --from saved.safetensors"
OF_THE_DSL = 'gemmill export "*cutedsl_e4m3*groupblock128strided_t64x16x256*" -m 64 -n 256 -k 512'


def save_call(smoke: BuildResult, path: Path) -> None:
    """A call of small integers, which no kernel rounds, saved as GEMMILL_DUMP saves it."""
    op, build = BY_NAME["cutlass_scaled_mm"], Build(smoke.folder)
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-2, 3, shape, generator=draw).to(torch.bfloat16) for shape in ((16, 64), (128, 64)))
    given = [torch.zeros(16, 128, dtype=torch.bfloat16), a, b.t(), torch.ones(1, 1), torch.ones(1, 1), None]

    def explain(name: str, args: list) -> tuple[str, Choice]:
        return build.build_id, build.explain(op, of_arguments(op, args), 132)

    folder = path.parent / "calls"
    Dumps(folder, explain, 1, 1 << 20, lambda: False).around(op, lambda *args: by_reference(op, args))(*given)
    next(folder.iterdir()).rename(path)
    folder.rmdir()


@pytest.mark.parametrize("line", [*EXAMPLES, OF_THE_DSL, SAVED])
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

    if line == SAVED:
        save_call(smoke, tmp_path / "saved.safetensors")
    outcome = run(sys.executable, "-m", *shlex.split(line))
    assert outcome.returncode == 0, outcome.stderr
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    done = run(folder / "build.sh")
    assert (folder / "reproducer").is_file(), done.stderr
    if torch.cuda.is_available():
        assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("right; "), done.stdout + done.stderr
    else:
        assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("device: "), done.stderr
