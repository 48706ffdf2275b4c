"""A peer's kernels compiled by several processes before anything is timed: alone it takes seconds for each shape."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gemmill.tuner.protocol import first_line


def compile_ahead(name: str, call: Callable[[Any], None], workloads: Sequence[Any], jobs: int, limit_s: float) -> str:
    """Have `jobs` processes call a peer once for each workload; it keeps its kernels on disk. Returns the outcomes."""
    begun = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting = pool.map_async(partial(_called, call), workloads, chunksize=1)
        try:
            failures = [failure for failure in waiting.get(limit_s) if failure]
        except multiprocessing.TimeoutError:
            return f"{name} had not compiled its kernels for {len(workloads)} shapes after {limit_s:.0f} s"
    text = f"{name} compiled its kernels for {len(workloads)} shapes in {time.perf_counter() - begun:.0f} s"
    return text if not failures else f"{text}; {len(failures)} failed, the first with: {failures[0]}"


def _called(call: Callable[[Any], None], workload: Any) -> str | None:
    try:
        call(workload)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        return f"{workload}: {first_line(error)}"
    return None
