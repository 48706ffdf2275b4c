"""DeepGEMM's kernels compiled by several processes before anything is timed: alone it takes seconds for each shape."""

import multiprocessing
import time
from collections.abc import Sequence

import torch

from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.tuner.problems import Workload
from gemmill.tuner.protocol import first_line
from peers.deep_gemm import deep_gemm_contender


def compile_ahead(folder: str, problems: Sequence[Workload], jobs: int, limit_s: float) -> str:
    """Have `jobs` processes call it once for each problem; it keeps what it compiled on disk. Returns what came of it."""
    begun = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting = pool.starmap_async(_compile, [(folder, problem) for problem in problems], chunksize=1)
        try:
            failures = [failure for failure in waiting.get(limit_s) if failure]
        except multiprocessing.TimeoutError:
            return f"DeepGEMM had not compiled its kernels for {len(problems)} shapes after {limit_s:.0f} s"
    text = f"DeepGEMM compiled its kernels for {len(problems)} shapes in {time.perf_counter() - begun:.0f} s"
    return text if not failures else f"{text}; {len(failures)} failed, the first with: {failures[0]}"


def _compile(folder: str, problem: Workload) -> str | None:
    try:
        operands = GemmMaker(torch.device("cuda"), rotated_bytes=1).make(problem)
        deep_gemm_contender(folder).call(operands, 0)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{problem}: {first_line(error)}"
    return None
