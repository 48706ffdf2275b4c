"""Tensors between the ops of layers are kept for calls that run in order, and for no others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from gemmill.nn import QuantLinear, calls
from gemmill.quantize import quantize_weight


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The stream that calls are on: the last of the list."""
    on: list[int | None] = [1]
    monkeypatch.setattr(calls, "_stream_of", lambda x: on[-1])
    monkeypatch.setattr(calls, "_kept", calls._Kept())
    return on


def places(x: Tensor) -> int:
    return calls._places(x, calls._e4m3_rows)[0].data_ptr()


def test_calls_of_one_thread_and_stream_share_them(streams: list[int | None]) -> None:
    x, found = drawn(4, 32), []
    first = places(x)
    assert places(drawn(4, 32)) == first
    assert len({first, places(drawn(5, 32)), places(drawn(4, 64)), calls._places(x, calls._s8_rows)[0].data_ptr()}) == 4
    thread = threading.Thread(target=lambda: found.append(places(x)))
    thread.start()
    thread.join()
    streams.append(2)
    assert len({first, *found, places(x)}) == 3, "another thread's calls and another stream's run in between"
    streams.append(None)
    kept = [calls._places(x, calls._e4m3_rows) for _ in range(3)]
    assert len({codes.data_ptr() for codes, _ in kept} - {first}) == 3, "where nothing is kept, each call has its own"
    streams.append(1)
    for rows in range(1, 200):
        places(drawn(rows, 32))
    assert len(calls._kept.pairs) <= calls._MOST_PAIRS


@pytest.mark.parametrize(
    ("format", "activations"), [("channel", "e4m3"), ("int8", "int8"), ("block128", "e4m3"), ("block32", "e4m3")]
)
def test_a_layer_computes_the_same_with_them(format: str, activations: str, streams: list[int | None]) -> None:
    layer = QuantLinear(quantize_weight(drawn(72, 256), format), activations=activations)
    inputs = [drawn(5, 256), 3 * drawn(5, 256).flip(0)]
    before = [layer(x) for x in inputs]
    streams.append(None)
    assert all(torch.equal(layer(x), out) for x, out in zip(inputs, before, strict=True))


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("captured", [None, 0, 1])
def test_the_stream_of_x_is_asked_whether_it_captures(
    current: int, captured: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two GPUs, whichever is current: a captured call may not use memory of others."""
    on = [current]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        on.append(index)
        yield
        on.pop()

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: on[-1], raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on[-1] == captured)
    monkeypatch.setattr(calls, "Tensor", _OnGpu)
    for index in (0, 1):
        wanted = None if captured == index else 100 + index
        assert calls._stream_of(_OnGpu(index)) == wanted  # type: ignore[arg-type]
    assert on == [current]


class _OnGpu:
    """The attributes of a tensor of a GPU."""

    is_cuda = True

    def __init__(self, index: int) -> None:
        self.get_device = lambda: index
        self.numel = lambda: 1


def test_nothing_is_kept_on_a_cpu_or_of_what_is_traced() -> None:
    assert calls._stream_of(drawn(2, 2)) is None
