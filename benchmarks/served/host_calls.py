"""The host's time of a call of each kind of quantised linear layers, in the process that has the model, without CUDA graphs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

_CALLS, _TURNS, _WARM = 100, 15, 20
_PLUGIN = "gemmill.compat.vllm.kernels"


def host_us(model: Any) -> dict[str, float]:
    """Microseconds in which a layer of each shape enqueues a call of one row, by `Layer N x K`: the median of some turns.

    Where gemmill's plugin serves, `Layer N x K, the plugin's Python` is the part that is neither the engine's nor an op's:
    ops return at once there. A turn's calls are fewer than a GPU's queue takes, and it begins with an idle GPU, so nothing
    waits for kernels.
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
            found[name] = round(1e6 * _seconds(partial(module.quant_method.apply, module, x), x), 2)
            for kernel in _kernels(module):
                found[f"{name}, the plugin's Python"] = round(1e6 * _own_seconds(kernel, module, x), 2)
    return found


def _kernels(module: Any) -> Iterator[Any]:
    """The objects of the plugin's classes that a layer's method or scheme has."""
    for owner in (module.quant_method, getattr(module, "scheme", None)):
        for value in getattr(owner, "__dict__", {}).values():
            if type(value).__module__ == _PLUGIN:
                yield value


def _own_seconds(kernel: Any, module: Any, x: torch.Tensor) -> float:
    """Of a call of the kernel, whose ops return at once."""
    plugin = sys.modules[_PLUGIN]
    y = x.new_empty((x.shape[0], module.output_size_per_partition))
    a = x.to(torch.float8_e4m3fn)
    scales = torch.ones((x.shape[0], 1), dtype=torch.float32, device=x.device)
    with ExitStack() as stack:
        for owner, name, result in (
            (plugin.gemmill, "cutlass_scaled_mm", y),
            (plugin.gemmill, "cutlass_scaled_mm_azp", y),
            (plugin.gemmill, "fp4_weight_mm", y),
            (plugin, "own_mm", y),
            (plugin, "by_rows", y),
            (plugin._custom_ops, "scaled_int8_quant", (a.view(torch.int8), scales, None)),
        ):
            stack.enter_context(patch.object(owner, name, lambda *_, result=result, **__: result))
        if "apply_weights" in type(kernel).__dict__ or not hasattr(kernel, "_get_layer_params"):
            return _seconds(partial(kernel.apply_weights, module, x), x)
        found = kernel._get_layer_params(module)
        if hasattr(found, "block_scale"):
            return _seconds(partial(kernel.apply_block_scaled_mm, a, found.weight, scales, found.block_scale), x)
        weight, w_scales = found[:2]
        given = {"A": a, "B": weight, "out_dtype": x.dtype, "As": scales, "Bs": w_scales, "bias": None}
        return _seconds(partial(kernel.apply_scaled_mm, **given, output_shape=list(y.shape)), x)


def _seconds(call: Callable[[], object], x: torch.Tensor) -> float:
    for _ in range(_WARM):
        call()
    turns = []
    for _ in range(_TURNS):
        if x.is_cuda:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            call()
        turns.append((time.perf_counter() - begun) / _CALLS)
    return median(turns)
