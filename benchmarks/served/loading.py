"""Seconds and memory of loading a model in vLLM: of all of it, and of what packs weights once they are read.

`register` is called by the entry point of random weights, in each process of the engine; the one with the model answers `loading`.
Where PROFILES is 1 in the environment, cProfile records Python's functions while the model loads, which takes longer then.
"""

import cProfile
import os
import pstats
import time
from collections.abc import Callable
from typing import Any

import torch

_PROCESS, _LOAD = "process_weights_after_loading", "load_model"
PROFILES = "SERVED_PROFILE_LOADING"
_KEPT = 50
"""Functions of a profile, by the time in them and what they call, and as many by the time in them alone."""
_found: dict[str, dict[str, Any]] = {}


def register() -> None:
    """Times vLLM's loading from now on. Does nothing the second time."""
    from vllm.model_executor.model_loader import base_loader, utils

    if not hasattr(base_loader.BaseModelLoader, "untimed"):
        base_loader.BaseModelLoader.untimed = base_loader.BaseModelLoader.load_model
        base_loader.BaseModelLoader.load_model = measured(_LOAD, base_loader.BaseModelLoader.untimed)
        # One function in both places, so that a plugin which replaces it finds it in both.
        timed = measured(_PROCESS, getattr(utils, _PROCESS))
        for module in (utils, base_loader):
            setattr(module, _PROCESS, timed)


def measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose seconds and GPU memory are kept: GiB before and after it, and the most in between."""

    def call(*given: Any, **named: Any) -> Any:
        profile = cProfile.Profile() if name == _LOAD and os.environ.get(PROFILES) == "1" else None
        before, begun = _memory(reset=True), time.perf_counter()
        result = profile.runcall(function, *given, **named) if profile else function(*given, **named)
        after = _memory()
        _found[name] = {
            "seconds": round(time.perf_counter() - begun, 3),
            "gib_before": before[0],
            "gib_after": after[0],
            "gib_most": max(
                [after[1], *(inner["gib_most"] for inner in _found.values())]
            ),  # a call within resets the peak
        }
        if profile:
            _found[name]["profile"] = functions_of(profile)
        return result

    return call


def functions_of(profile: cProfile.Profile) -> list[dict[str, Any]]:
    """Those that took longest, the longest first: calls, and seconds in all and outside of what they call."""
    found = [
        {"function": f"{'/'.join(file.split('/')[-3:])}:{line} {function}", "calls": calls, "s": total, "own_s": own}
        for (file, line, function), (_, calls, own, total, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    ]
    by_own = sorted(found, key=lambda x: x["own_s"], reverse=True)[:_KEPT]
    by_all = sorted(found, key=lambda x: x["s"], reverse=True)
    kept = [x for x in by_all if x in by_own or x in by_all[:_KEPT]]
    return [x | {"s": round(x["s"], 4), "own_s": round(x["own_s"], 4)} for x in kept]


def _memory(*, reset: bool = False) -> tuple[float, float]:
    """GiB that tensors have now, and the most since the last reset."""
    if not torch.cuda.is_available():
        return 0.0, 0.0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return tuple(round(x / 2**30, 3) for x in (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))


def loading(model: Any) -> dict[str, dict[str, Any]]:
    """What was measured in this process."""
    return _found
