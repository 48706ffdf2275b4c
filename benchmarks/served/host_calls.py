"""The host's time of a call of each kind of quantised linear layers, in the process that has the model, without CUDA graphs."""

import time
from statistics import median
from typing import Any

import torch

_CALLS, _TURNS, _WARM = 100, 15, 20


def host_us(model: Any) -> dict[str, float]:
    """Microseconds in which a layer of each shape enqueues a call of one row, by `Layer N x K`: the median of some turns.

    A turn's calls are fewer than a GPU's queue takes, and it begins with an idle GPU, so nothing waits for kernels.
    """
    found: dict[str, float] = {}
    with torch.inference_mode():
        for module in model.modules():
            sizes = (
                getattr(module, "output_size_per_partition", None),
                getattr(module, "input_size_per_partition", None),
            )
            name = f"{type(module).__name__} {sizes[0]} x {sizes[1]}"
            if None in sizes or name in found or not hasattr(module, "quant_method"):
                continue
            device = next(module.parameters()).device
            x = torch.zeros((1, sizes[1]), dtype=torch.bfloat16, device=device)
            found[name] = round(1e6 * _seconds(module, x), 2)
    return found


def _seconds(module: Any, x: torch.Tensor) -> float:
    for _ in range(_WARM):
        module.quant_method.apply(module, x)
    turns = []
    for _ in range(_TURNS):
        if x.is_cuda:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            module.quant_method.apply(module, x)
        turns.append((time.perf_counter() - begun) / _CALLS)
    return median(turns)
