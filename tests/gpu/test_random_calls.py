"""Random calls: by `gemmill fuzz`'s own processes, from threads, on a GPU that is not the current one, first in a capture."""

import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import gemmill
from gemmill.fuzz.campaign import Budget, fuzz
from gemmill.fuzz.findings import FuzzSpec
from gemmill.runtime.schemas import OPS
from gpu.random_calls import calls_of

NAMES = tuple(op.name for op in OPS)
THREADS, CALLS_OF_A_THREAD = 8, 6
TESTS = Path(__file__).parents[1]


def test_random_calls(device, pytestconfig) -> None:
    """Operands padded with NaN (127 for s8), guards around outputs, scales and vectors, rank 3, empty batches, broken calls."""
    on_gpu = device.type == "cuda"
    spec = FuzzSpec(ops=NAMES, seed=1, gpu=on_gpu, build=pytestconfig.getoption("--build") if on_gpu else None)
    report = fuzz(spec, Budget(calls=8000 if on_gpu else 400, jobs=4 if on_gpu else 1, call_seconds=120.0))
    assert not [f"{finding.reproducer}: {finding.detail}" for finding in report.findings]
    assert report.legal > report.broken > 0


def test_threads_at_once(device) -> None:
    """Each makes every op's calls on a stream of its own, all from the same moment on."""
    ready = threading.Barrier(THREADS)
    faults: list[str] = []

    def work(seed: int) -> None:
        stream = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
        try:
            with stream:
                calls = [each for op in NAMES for each in calls_of(op, seed, CALLS_OF_A_THREAD, device)]
                ready.wait()
                for each in calls:
                    each.make()
                faults.extend(f"{each.call.op}: {fault}" for each in calls if (fault := each.fault()))
        except Exception as error:
            ready.abort()
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.needs_cuda
@pytest.mark.parametrize("op", NAMES)
@pytest.mark.parametrize(("current", "other"), [(0, 1), (1, 0)])
def test_tensors_on_a_gpu_that_is_not_the_current_one(op: str, current: int, other: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: there is one")
    elsewhere = torch.device("cuda", other)
    with torch.cuda.device(current):
        for each in calls_of(op, 2, 40, elsewhere):
            each.make()
            assert torch.cuda.current_device() == current
            assert not each.fault(), each.call


@pytest.mark.needs_cuda
@pytest.mark.parametrize("op", NAMES)
def test_operands_on_two_gpus_are_refused(op: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: there is one")
    each = next(calls_of(op, 3, 40, torch.device("cuda:0")))
    name = next(name for name, slot in each.call.slots.items() if not slot.written)
    index = list(gemmill.runtime.schemas.BY_NAME[op].arguments).index(name)
    arguments = list(each.arguments)
    arguments[index] = arguments[index].to("cuda:1")
    with pytest.raises(RuntimeError, match="all tensors must be on one device"):
        getattr(torch.ops.gemmill, op).default(*arguments)
    assert not each.memory.changed(each.before, written=False).any()


@pytest.mark.needs_cuda
def test_the_first_launch_of_each_kernel_may_be_in_a_capture(pytestconfig) -> None:
    """In a process of its own, where no kernel of gemmill was ever launched, and no build is loaded before the first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    if pytestconfig.getoption("--build"):
        environment["GEMMILL_BUILD"] = pytestconfig.getoption("--build")
    arguments = [sys.executable, "-m", "gpu.first_capture", pytestconfig.getoption("--match")]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert not answer["faults"]
    assert answer["captured"] > 0
