"""tools/five_minutes.py, with a wheel of a build whose kernels compute nothing; on the CPU the reference does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_from_the_wheel_to_a_served_layer(home_of_probes) -> None:
    environment = os.environ | {"GEMMILL_HOME": str(home_of_probes), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "tools" / "five_minutes.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [
        line[3:] for line in lines if line.startswith("== ") and ":" not in line
    ] == "wheel install layer doctor plugins".split()
    assert any(line.startswith("out [16, 256] = x [16, 512] @ weight.t() in FP8 on cpu: ") for line in lines)
    assert "vLLM asks first: GemmillFP8Linear, GemmillBlockFP8Linear, GemmillInt8Linear" in lines
    told = [line for line in done.stderr.splitlines() if " takes a linear layer of N x K = 4096 x 4096, " in line]
    assert len(told) == 2 and all(line.startswith("gemmill: gemmill takes ") and "4096 rows" in line for line in told)
