"""The programs of docs/clusters.md, as far as they run without a cluster: SLURM's job script, and Kubernetes' resource."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
SLURM, KUBERNETES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ROLES = {role: {"cert": "CERT", "key": "CERT"} for role in ("scheduler", "worker", "client")}
TLS = json.dumps({"distributed": {"comm": {"tls": {"ca-file": "CERT"} | ROLES}}})


def run(program: str, folder: Path) -> str:
    (folder / "dask.yaml").write_text(TLS.replace("CERT", str(folder / "both.pem")))
    environment = os.environ | {"DASK_CONFIG": str(folder / "dask.yaml")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slurm_is_asked_for_a_gpu_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="pip install dask-jobqueue")
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=gemmill"]
    written = ["-keyout", tmp_path / "both.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run([*certificate, *written], capture_output=True, check=True)
    with (tmp_path / "both.pem").open("a") as file:
        file.write((tmp_path / "cert.pem").read_text())
    head, _, _ = SLURM.partition("cluster.scale(")
    script = run(head, tmp_path)
    assert {"#SBATCH --gres=gpu:1", "#SBATCH -p gpu", "#SBATCH --cpus-per-task=8"} <= set(script.splitlines())
    (worker,) = (line for line in script.splitlines() if "dask_worker tls://" in line)
    assert " --nthreads 1 " in worker and " --resources GPU=1 " in worker and " --tls-ca-file " in worker


def test_kubernetes_is_given_a_gpu_a_worker_and_certificates(tmp_path: Path) -> None:
    pytest.importorskip("dask_kubernetes", reason="pip install dask-kubernetes")
    spec = json.loads(run(KUBERNETES, tmp_path))
    scheduler, worker = (spec["spec"][role]["spec"]["containers"][0] for role in ("scheduler", "worker"))
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1" and "resources" not in scheduler
    assert worker["args"][:7] == "dask worker tls://gemmill-scheduler:8786 --nthreads 1 --resources GPU=1".split()
    for container in (scheduler, worker):
        assert {"name": "DASK_CONFIG", "value": "/dask-tls/dask.yaml"} in container["env"]
        assert container["volumeMounts"] == [{"name": "dask-tls", "mountPath": "/dask-tls", "readOnly": True}]
