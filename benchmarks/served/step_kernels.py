"""The kernels of a decode step, in the process that has the model: which they are, how often a step launches each, and their times."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.ns


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

    A step lasts from a launch of a kernel that each step launches once to the next; there are `steps` or more, those of the prompts
    too. The middle half counts: prompts come before it, and no sequence ends within it. `us` is a kernel's time, with its wait for its
    predecessor where it is launched ahead (programmatic launches). `own_us` is the time from the end before its own to its own, less
    that in which no kernel runs, so that these and the idle part add up to the steps' mean. Where no kernel is launched once a step,
    all are None or empty.
    """
    ordered = sorted(ran, key=lambda kernel: kernel.start_ns)
    marks = _once_a_step(ordered, steps)
    marks = marks[len(marks) // 4 : len(marks) - len(marks) // 4]
    if len(marks) < 2:
        return {"step_us": None, "idle_us": None, "kernels_us": None, "kernels": []}
    first, last = (bisect_left(ordered, at, key=lambda kernel: kernel.start_ns) for at in (marks[0], marks[-1]))
    counted, before = ordered[first:last], max((x.end_ns for x in ordered[:first]), default=0)
    count = len(marks) - 1
    kernels = _kernels(counted, before, count)
    spans = list(pairwise(marks))
    return {
        "step_us": median(end - begin for begin, end in spans) / 1000,
        "idle_us": median(_idle(ordered, spans)) / 1000,
        "kernels_us": sum(float(kernel["us"]) for kernel in kernels),
        "kernels": kernels[:_MOST_NAMES],
    }


def _once_a_step(ordered: Sequence[Ran], steps: int) -> list[int]:
    """The starts of a kernel that each step launches once: of those with as many launches or more, the one with the fewest."""
    starts: dict[str, list[int]] = defaultdict(list)
    for kernel in ordered:
        starts[kernel.name].append(kernel.start_ns)
    return min((x for x in starts.values() if steps <= len(x) < 2 * steps), key=len, default=[])


def _kernels(counted: Sequence[Ran], before: int, steps: int) -> list[dict[str, Any]]:
    """Of each name the launches and times of a step. `before` is when all earlier kernels have ended."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    by_end = sorted(counted, key=lambda kernel: kernel.end_ns)
    begun = list(accumulate((kernel.start_ns for kernel in reversed(by_end)), min))[::-1]  # by one that has not ended
    for kernel, start in zip(by_end, begun, strict=True):
        of = found[kernel.name]
        of[0] += 1
        of[1] += kernel.ns
        of[2] += max(0, kernel.end_ns - max(start, before))
        before = max(before, kernel.end_ns)
    kernels = [
        {
            "name": name[:_NAME],
            "launches": round(launches / steps, 2),
            "us": ns / steps / 1000,
            "own_us": own / steps / 1000,
        }
        for name, (launches, ns, own) in found.items()
    ]
    return sorted(kernels, key=lambda kernel: -float(kernel["own_us"]))


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
