"""The kernels of a decode step, in the process that has the model: which they are, how often a step launches each, and its time."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

_MOST_NAMES = 40
_NAME = 160
_running: list[Any] = []


@dataclass(frozen=True)
class Ran:
    """A kernel on the GPU."""

    name: str
    start_ns: int
    ns: int


def begin(model: Any) -> None:
    """Records the GPU's kernels from here on, those of CUDA graphs too."""
    import torch

    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    profile.start()
    _running.append(profile)


def _last(runs: list[Ran], count: int) -> list[Ran]:
    return sorted(runs, key=lambda kernel: kernel.start_ns)[-count:]


def end(model: Any, steps: int) -> dict[str, Any]:
    """`of_steps` of the kernels since `begin`."""
    import torch

    torch.cuda.synchronize()
    profile = _running.pop()
    profile.stop()
    events = profile.profiler.kineto_results.events()
    on_gpu = (x for x in events if x.device_type() == torch.autograd.DeviceType.CUDA)
    return of_steps((Ran(x.name(), x.start_ns(), x.duration_ns()) for x in on_gpu), steps)


def of_steps(ran: Iterable[Ran], steps: int) -> dict[str, Any]:
    """A step's time, the time in which its kernels ran, and the kernels, longest first.

    A kernel of fewer than `steps` launches belongs to the prompts, and so do those of the first launches that no step accounts for.
    Times of kernels that wait for their predecessors (programmatic launches) overlap, so they may add up to more than a step. A step's time is the median time between launches of a kernel
    that each step launches once; it is None where no kernel is.
    """
    times: dict[str, list[Ran]] = defaultdict(list)
    for kernel in ran:
        times[kernel.name].append(kernel)
    kernels, step_us = [], None
    for name, runs in times.items():
        a_step = len(runs) // steps
        if not a_step:
            continue
        kernels.append(
            {
                "name": name[:_NAME],
                "launches": a_step,
                "us": sum(x.ns for x in _last(runs, a_step * steps)) / steps / 1000,
            }
        )
        if a_step == 1 and step_us is None:
            starts = sorted(x.start_ns for x in runs)
            step_us = median(b - a for a, b in pairwise(starts)) / 1000 if steps > 1 else None
    kernels.sort(key=lambda kernel: -float(kernel["us"]))
    busy = sum(float(kernel["us"]) for kernel in kernels)
    return {"step_us": step_us, "busy_us": busy, "kernels": kernels[:_MOST_NAMES]}
