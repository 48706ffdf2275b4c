"""Seconds and memory of loading a model in vLLM: of all of it, and of what packs weights once they are read.

`register` is called by the entry point of random weights, in each process of the engine; the one with the model answers `loading`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

_PROCESS, _LOAD = "process_weights_after_loading", "load_model"
_found: dict[str, dict[str, float]] = {}


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
        before, begun = _memory(reset=True), time.perf_counter()
        result = function(*given, **named)
        after = _memory()
        _found[name] = {
            "seconds": round(time.perf_counter() - begun, 3),
            "gib_before": before[0],
            "gib_after": after[0],
            "gib_most": max(
                [after[1], *(inner["gib_most"] for inner in _found.values())]
            ),  # a call within resets the peak
        }
        return result

    return call


def _memory(*, reset: bool = False) -> tuple[float, float]:
    """GiB that tensors have now, and the most since the last reset."""
    if not torch.cuda.is_available():
        return 0.0, 0.0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return tuple(round(x / 2**30, 3) for x in (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))


def loading(model: Any) -> dict[str, dict[str, float]]:
    """What was measured in this process."""
    return _found
