"""The host's time of a call of a layer, and the plugin's part of it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from served import host_calls


class Layer(torch.nn.Module):
    """A quantised layer of 64 x 32."""

    output_size_per_partition, input_size_per_partition = 64, 32

    def __init__(self, kernel: object) -> None:
        super().__init__()
        self.weight, self.scales = torch.nn.Parameter(torch.zeros(64, 32)), torch.ones(64, 1)
        self.quant_method = SimpleNamespace(apply=lambda _, x: x, kernel=kernel)


def test_the_plugins_python_is_timed_without_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin: Any = ModuleType(host_calls._PLUGIN)
    plugin.gemmill = SimpleNamespace(
        cutlass_scaled_mm=pytest.fail, cutlass_scaled_mm_azp=pytest.fail, fp4_weight_mm=pytest.fail
    )
    plugin._custom_ops = SimpleNamespace(scaled_int8_quant=pytest.fail)
    plugin.own_mm = plugin.by_rows = pytest.fail
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    monkeypatch.setattr(host_calls, "_TURNS", 2)
    calls = []

    class Scaled:
        def _get_layer_params(self, layer: Layer) -> tuple[torch.Tensor | None, ...]:
            return layer.weight, layer.scales, None, None

        def apply_scaled_mm(self, *, A, B, out_dtype, As, Bs, bias, output_shape) -> torch.Tensor:  # vLLM's
            calls.append(output_shape)
            out: torch.Tensor = plugin.gemmill.cutlass_scaled_mm(A, B, As, Bs, out_dtype, bias)
            return out

    class Whole:
        def apply_weights(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
            codes, scales, _ = plugin._custom_ops.scaled_int8_quant(x)
            out: torch.Tensor = plugin.own_mm(codes, layer.weight, scales)
            return out

    Scaled.__module__ = Whole.__module__ = plugin.__name__
    name = "Layer 64 x 32"
    for kernel in (Scaled(), Whole()):
        found = host_calls.host_us(torch.nn.Sequential(Layer(kernel)))
        assert list(found) == [name, f"{name}, the plugin's Python"]
    assert calls and calls[0] == [1, 64]
    assert list(host_calls.host_us(torch.nn.Sequential(Layer(object())))) == [name]
    assert plugin.own_mm is plugin.by_rows is pytest.fail, "the stand-ins are gone"
