"""tools/five_minutes.py, with both packages, of a build whose kernels compute nothing; on the CPU the reference does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("build")
pytest.importorskip("hatchling")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[3]


def test_from_two_wheels_to_verbs_and_a_served_layer(home_of_probes) -> None:
    environment = os.environ | {"GEMMILL_HOME": str(home_of_probes), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "tools" / "five_minutes.py"), "--all"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert (
        [line[3:] for line in lines if line.startswith("== ") and ":" not in line]
        == "build wheel install layer doctor list plan tune time generate audit export fuzz dump model convert generates plugins".split()
    )
    assert [line.partition("-")[0] for line in lines if ".whl: " in line] == ["gemmill", "gemmill_sm90a_cu13"]
    assert any(line.startswith("14 layers of a model in FP8 on cpu generate [") for line in lines)
    assert any("4 shapes" in line for line in lines), "tuned"
    assert any(line.startswith("out [16, 256] = x [16, 512] @ weight.t() in FP8 on cpu: ") for line in lines)
    of_blocks = "GemmillFineBlockFP8Linear, GemmillBlockFP8Linear"
    assert f"vLLM asks first: GemmillFP8Linear, {of_blocks}, GemmillInt8Linear" in lines
    told = [line for line in done.stderr.splitlines() if " takes a linear layer of N x K = 4096 x 4096, " in line]
    assert len(told) == 2 and all(line.startswith("gemmill: gemmill takes ") and "4096 rows" in line for line in told)
