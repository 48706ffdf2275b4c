"""Layers of quantised weights on a GPU: their results against a CPU, in graphs, moved, and in turns."""

import copy

import pytest
import torch
from torch import Tensor, nn

import gemmill
from gemmill.nn import Block, InTurns, QuantLinear, calls, quantize_module
from gemmill.nn.recipes import RECIPES
from gemmill.quantize import WEIGHT_FORMATS, quantize_weight

K, N = 512, 256
every_recipe = pytest.mark.parametrize(("format", "activations"), list(RECIPES))


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def made(format: str, activations: str) -> QuantLinear:
    absmax = 5.0 if activations == "nvfp4" else None
    weight = quantize_weight(drawn(N, K), format)
    return QuantLinear(weight, drawn(N), activations=activations, input_absmax=absmax)


def computed(layer: nn.Module, x: Tensor) -> Tensor:
    """Skips where the build lacks the variant."""
    try:
        return layer(x)
    except RuntimeError as error:
        if " lacks " not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
def test_codes_are_those_of_a_cpu(format: str, device: torch.device) -> None:
    weight = drawn(300, 384)
    weight[3], weight[4] = weight[3] * 1e-20, 0
    on_cpu, on_gpu = quantize_weight(weight, format), quantize_weight(weight.to(device), format).to("cpu")
    for name, tensor in on_cpu.tensors.items():
        assert torch.equal(on_gpu.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name


@every_recipe
@pytest.mark.parametrize("m", [1, 17, 300])
def test_a_layer_computes_what_it_computes_on_a_cpu(
    format: str, activations: str, m: int, device: torch.device
) -> None:
    layer, x = made(format, activations), drawn(m, K)
    wanted = layer(x).float()
    found = computed(layer.to(device), x.to(device)).float().cpu()
    # Sums are added in another order and rounded to bf16 once: 2^-8 of each value at most, and half of that on average.
    assert (found - wanted).norm() <= 2**-8 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.needs_cuda
def test_weights_unpacked_for_many_rows_give_the_packed_result(dtype: torch.dtype, device: torch.device) -> None:
    layer = made("nvfp4", "e4m3").to(device).to(dtype)
    x = drawn(calls.UNPACKED_FROM, K).to(device, dtype)
    found, few = computed(layer, x), computed(layer, x[:-1])
    # The operands are the same, so sums differ by their order, and results by a rounding to x's dtype.
    assert (found[:-1].float() - few.float()).norm() <= 2**-8 * few.float().norm()
    with gemmill.batch_invariant():
        assert torch.equal(computed(layer, x)[:-1], computed(layer, x[:-1]))


@every_recipe
@pytest.mark.needs_cuda
def test_a_layer_is_captured_and_comes_back_from_the_host(format: str, activations: str, device: torch.device) -> None:
    layer, x = made(format, activations).to(device), drawn(16, K).to(device)
    wanted = computed(layer, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, wanted)
    layer.to_cpu(non_blocking=True)
    torch.cuda.synchronize()
    assert all(tensor.is_pinned() for tensor in layer.buffers())
    assert torch.equal(layer.to_cuda(device, non_blocking=True)(x), wanted)


@every_recipe
@pytest.mark.needs_cuda
def test_a_layer_compiles_whole(format: str, activations: str, device: torch.device) -> None:
    layer, x = made(format, activations).to(device), drawn(16, K).to(device)
    wanted = computed(layer, x)
    torch._dynamo.reset()
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.needs_cuda
def test_blocks_in_turns_compute_what_they_compute_alone(slots: int, device: torch.device) -> None:
    layers = [nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, K)).bfloat16() for _ in range(7)]
    for layer in layers:
        quantize_module(layer, "nvfp4")
    blocks = [Block(layer) for layer in layers]
    resident = [copy.deepcopy(layer).to(device) for layer in layers]
    turns, x = InTurns(layers[0], blocks, device=device, slots=slots), drawn(256, K).to(device)
    wanted = x
    for layer in resident:
        wanted = computed(layer, wanted)
    assert blocks[0].host.is_pinned()
    copied = copy.deepcopy(turns)
    for _ in range(20):
        assert torch.equal(turns(x), wanted) and torch.equal(copied(x), wanted)


@pytest.mark.needs_cuda
def test_a_converted_layer_comes_back_from_the_host(device: torch.device) -> None:
    """Pinned memory of a bias that is still bf16 would round it."""
    layer = made("channel", "e4m3").to(device).to_cpu().to_cuda(device).half()
    bias = layer.bias.clone()
    assert layer.to_cpu().bias.is_pinned() and layer.bias.dtype is torch.float16
    assert torch.equal(layer.to_cuda(device).bias, bias) and layer.weight.dtype is torch.float8_e4m3fn


@pytest.mark.needs_cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="asks two GPUs")
def test_what_is_captured_on_another_gpu_is_not_kept() -> None:
    x, graph = drawn(2, K).to("cuda:1"), torch.cuda.CUDAGraph()
    assert calls._stream_of(x) is not None
    with torch.cuda.device(1), torch.cuda.graph(graph), torch.cuda.device(0):
        assert calls._stream_of(x) is None
