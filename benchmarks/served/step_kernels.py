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
    """Microseconds of a step, of its part in which no kernel ran, and of its kernels, longest first.

    A kernel of fewer than `steps` launches belongs to the prompts, and so do first launches beyond a multiple of `steps`. A step lasts
    from a launch of a kernel that each step launches once to the next, the median counts; without such a kernel it is None. Kernels
    that wait for their predecessors (programmatic launches) overlap, so their times may add up to more than a step.
    """
    ordered = sorted(ran, key=lambda kernel: kernel.start_ns)
    times: dict[str, list[Ran]] = defaultdict(list)
    for kernel in ordered:
        times[kernel.name].append(kernel)
    kernels, of_step = [], []
    for name, runs in times.items():
        if launches := len(runs) // steps:
            counted = runs[-launches * steps :]
            us = sum(x.ns for x in counted) / steps / 1000
            kernels.append({"name": name[:_NAME], "launches": launches, "us": us})
            of_step = of_step or (counted if launches == 1 else [])
    kernels.sort(key=lambda kernel: -float(kernel["us"]))
    spans = [(first.start_ns, after.start_ns) for first, after in pairwise(of_step)]
    idle = _idle(ordered, spans)
    return {
        "step_us": median(end - begin for begin, end in spans) / 1000 if spans else None,
        "idle_us": median(idle) / 1000 if spans else None,
        "kernels_us": sum(float(kernel["us"]) for kernel in kernels),
        "kernels": kernels[:_MOST_NAMES],
    }


def _idle(ordered: list[Ran], spans: list[tuple[int, int]]) -> list[int]:
    """Nanoseconds of each span, one after another, in which no kernel ran."""
    found, place, free = [], 0, 0
    for begin, end in spans:
        idle, free = 0, max(free, begin)
        while place < len(ordered) and ordered[place].start_ns < end:
            kernel = ordered[place]
            idle += max(0, kernel.start_ns - free)
            free = max(free, kernel.start_ns + kernel.ns)
            place += 1
        found.append(idle + max(0, end - free))
    return found
