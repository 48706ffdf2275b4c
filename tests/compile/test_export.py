"""What `gemmill export` writes compiles by its own script; without a GPU it says so and ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gemmill
from gemmill.build.toolchain import ToolchainPaths

SHAPE = ("-m", 64, "-n", 256, "-k", 512)
UNALIGNED = "sm90a_cutlass_{0}_{0}_{1}_bf16_scaledbias_channel_t64x64x64_c1x1x1_mmasync_{2}_persistent_ab_sauto_a1b1d1"
DSL = (
    "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_groupblock128strided_t64x16x256_c1x1x1_basic_promoted_splitk_swapab_s4_"
    "a16b16d8"
)


@pytest.mark.parametrize("name", [UNALIGNED.format("s8", "s32", "exact"), DSL], ids=["cutlass", "cutedsl"])
def test_a_reproducer_compiles_and_runs(gemmill_command, toolchain: ToolchainPaths, tmp_path: Path, name: str) -> None:
    outcome = gemmill_command("export", name, *SHAPE, "--out", tmp_path / "it")
    assert outcome.returncode == 0, outcome.stderr
    tools = os.pathsep.join([str(toolchain.home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": tools,
        "PYTHONPATH": str(Path(gemmill.__file__).parents[1]),
        "CUTLASS_INCLUDE": str(toolchain.cutlass_include),
        "LIBRARY_PATH": str(toolchain.cudart_static.parent),
    }
    done = subprocess.run([tmp_path / "it" / "build.sh"], env=environment, capture_output=True, text=True, check=False)
    assert (tmp_path / "it" / "reproducer").is_file(), done.stderr
    if torch.cuda.is_available():
        assert done.returncode == 0 and done.stdout.startswith("right; "), done.stdout + done.stderr
    else:
        assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("device: "), done.stderr


@pytest.fixture
def gemmill_command():
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gemmill", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(Path(gemmill.__file__).parents[1])}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run
