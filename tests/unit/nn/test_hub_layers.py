"""Forward methods for `kernelize`, on transformers' own layers."""

from types import MethodType

import pytest
import torch

pytest.importorskip("transformers")
from transformers.integrations.compressed_tensors import CompressedTensorsFP8Linear
from transformers.integrations.finegrained_fp8 import FP8Linear

from gemmill.nn import hub_layers

N, K = 256, 384


def filled(layer: torch.nn.Module, name: str, scales: torch.Tensor) -> torch.nn.Module:
    torch.manual_seed(0)
    layer.weight = torch.nn.Parameter(torch.randn(N, K).to(torch.float8_e4m3fn), requires_grad=False)
    setattr(layer, name, torch.nn.Parameter(scales))  # of transformers, scales require gradients
    if layer.bias is not None:
        layer.bias.data.normal_()
    layer.forward = MethodType(getattr(hub_layers, type(layer).__name__).forward, layer)
    return layer


def is_near(layer: torch.nn.Module, scales: torch.Tensor) -> bool:
    x = torch.randn(2, 3, K, dtype=torch.bfloat16)
    exact = x.float() @ (layer.weight.float() * scales).t()
    exact += 0 if layer.bias is None else layer.bias
    found = layer(x)
    assert found.dtype is torch.bfloat16 and found.shape == (2, 3, N) and not found.requires_grad
    return bool((found.float() - exact).norm() < 0.05 * exact.norm())


@pytest.mark.parametrize("has_bias", [False, True])
def test_blocks(has_bias: bool) -> None:
    scales = torch.rand(N // 128, K // 128) + 0.5
    layer = filled(FP8Linear(K, N, block_size=(128, 128), has_bias=has_bias), "weight_scale_inv", scales)
    assert is_near(layer, scales.repeat_interleave(128, 0).repeat_interleave(128, 1))


def test_one_scale() -> None:
    assert is_near(filled(FP8Linear(K, N), "weight_scale_inv", torch.tensor(0.7)), torch.tensor(0.7))


def test_gradients_are_refused_not_lost() -> None:
    layer = filled(FP8Linear(K, N), "weight_scale_inv", torch.tensor(0.7))
    with pytest.raises(RuntimeError, match="grad"):
        layer(torch.randn(2, K, dtype=torch.bfloat16, requires_grad=True))


def test_a_layer_that_is_not_quantised() -> None:
    layer = FP8Linear(K, N)
    layer.weight = torch.nn.Parameter(torch.randn(N, K))
    x = torch.randn(2, K)
    forward = MethodType(hub_layers.FP8Linear.forward, layer)
    assert torch.equal(forward(x), torch.nn.functional.linear(x, layer.weight))


def test_channels() -> None:
    scales = torch.rand(1, N) + 0.5
    layer = filled(CompressedTensorsFP8Linear(K, N, has_bias=True), "weight_scale", scales)
    assert is_near(layer, scales.t())


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"block_size": (64, 64)}, r"blocks \[64, 64\], scales float32, dynamic activations"),
        ({"activation_scheme": "static"}, r"blocks None, scales float32, static activations"),
        ({"block_size": (128, 128), "scale_fmt": "ue8m0"}, r"blocks \[128, 128\], scales float8_e8m0fnu, dynamic"),
    ],
)
def test_refusals(more: dict, found: str) -> None:
    forward = MethodType(hub_layers.FP8Linear.forward, FP8Linear(K, N, **more))
    with pytest.raises(ValueError, match=f"gemmill's FP8Linear got {found}.*: it takes blocks .* by a condition of"):
        forward(torch.randn(2, K, dtype=torch.bfloat16))


@pytest.mark.parametrize("layer", [hub_layers.FP8Linear, hub_layers.CompressedTensorsFP8Linear])
def test_kernelize_asks_for_no_members(layer: type) -> None:
    assert layer.__init__ is torch.nn.Module.__init__
    assert set(dir(layer)) - set(dir(torch.nn.Module)) == {"can_torch_compile", "has_backward"}
