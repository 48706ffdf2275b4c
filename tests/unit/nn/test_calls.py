"""What layers and their ops write is allocated past torch's dispatcher, and within it where a call is traced."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gemmill.nn import QuantLinear, calls
from gemmill.nn.recipes import RECIPES
from gemmill.quantize import quantize_weight


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What is allocated past the dispatcher, with a CPU in the place of the current GPU."""
    found: list[Tensor] = []

    def empty(*asked: object) -> Tensor:
        found.append(torch._C._dynamo.guards._empty_strided_cpu(*asked))
        return found[-1]

    monkeypatch.setattr(calls, "_EMPTY", empty)
    monkeypatch.setattr(calls, "_on_this_gpu", lambda x: x.device.type == "cpu")
    return found


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_a_layer_computes_the_same_with_them(format: str, activations: str, made: list[Tensor]) -> None:
    absmax = 5.0 if activations == "nvfp4" else None
    layer = QuantLinear(quantize_weight(drawn(128, 256), format), activations=activations, input_absmax=absmax)
    x = drawn(5, 256)
    found, count = layer(x), len(made)
    assert count in (1, 3) and made[-1] is found and (found.dtype, found.shape) == (torch.bfloat16, (5, 128))

    class Watching(TorchDispatchMode):
        """As a tracer does."""

        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return func(*args, **(kwargs or {}))

    with Watching():
        assert torch.equal(layer(x), found)
    assert len(made) == count, "a tracer must see what is allocated"
    torch.compiler.reset()
    assert torch.equal(torch.compile(layer, backend="eager", fullgraph=True)(x), found)
    assert len(made) == count


def test_each_call_has_its_own(made: list[Tensor]) -> None:
    layer = QuantLinear(quantize_weight(drawn(128, 256), "channel"))
    x, y = drawn(5, 256), drawn(5, 256).flip(0)
    first, second = layer(x), layer(y)
    assert len({tensor.data_ptr() for tensor in made}) == 6
    assert torch.equal(layer(x), first) and torch.equal(layer(y), second)


def test_a_tensor_of_another_device_or_class_is_not_taken_for_one_of_this_gpu() -> None:
    class Own(Tensor):
        pass

    assert not calls._on_this_gpu(drawn(2, 2)) and not calls._on_this_gpu(drawn(2, 2).as_subclass(Own))
