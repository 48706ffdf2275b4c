"""The programs of examples/ run without a GPU, as their headers say."""

import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTED = {
    "transformers_model": r"channel on cpu: logits differ by 0\.0\d+ of their norm, [\d.]+ MB, next tokens \[.*\]",
    "diffusion_block": r"channel: error 0\.01\d+, [\d.]+ ms\nint8: error 0\.00\d+",
    "tune_my_shapes": r"2 rows of dry run \(sm90a\)",
    "own_epilogue": r"leaky on cpu: \(48, 96\) of torch.bfloat16, largest difference 0\.00\d+",
    "export_and_aoti": r"33 rows on cpu: largest difference from eager 0\.0",
}
WITH_A_GPU = {"vllm_plugin"}
NEEDS = {"transformers_model": "transformers"}


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "generator"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "GEMMILL_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_each_is_run_or_compiled() -> None:
    assert {path.stem for path in EXAMPLES} == PRINTED.keys() | WITH_A_GPU
    listed = re.findall(r"^\| `(\w+)\.py` \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("name", PRINTED)
def test_it_runs_on_a_cpu(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = run(f"examples/{name}.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout), done.stdout


@pytest.mark.parametrize("name", sorted(WITH_A_GPU))
def test_one_for_a_gpu_compiles_and_has_help(name: str, tmp_path: Path) -> None:
    py_compile.compile(str(ROOT / f"examples/{name}.py"), cfile=str(tmp_path / "compiled"), doraise=True)
    done = run(f"examples/{name}.py", "--help", folder=tmp_path)
    assert done.returncode == 0 and "--model" in done.stdout


def test_an_own_epilogue_can_be_built(tmp_path: Path) -> None:
    line = (ROOT / "examples/own_epilogue.py").read_text().split("    gemmill build ")[1].split("  ")[0]
    smoke = ["-m", "gemmill", "build", "--dry-run", "--select", "smoke"]
    done, without = run(*smoke, *line.split(), folder=tmp_path), run(*smoke, folder=tmp_path)
    assert (done.returncode, without.returncode) == (0, 0), done.stderr
    kernels = [int(re.search(r"variants\D+(\d+)", plan.stdout)[1]) for plan in (done, without)]
    assert kernels[0] > kernels[1]
