"""Packing a layer holds two tensors: the stored and the packed one; and a file of it is written part by part.

Tensors are counted as torch makes and drops them, so that weights may be small and the count is the same on every machine.
"""

import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.names import spelling_of
from gemmill.formats import fp4_blocks
from gemmill.nn import QuantLinear, packed, save_packed
from gemmill.nn.recipes import RECIPES
from gemmill.quantize import prepack, quantize_weight
from stored import save

N, K = 4096, 256
PART = 64 * K
"""Weights, and bytes, of one step: those of a tile of 64 rows."""
IN_WORK = 24 * PART + 32 * N
"""Bytes that a part of a weight may take while it is packed, codes of a byte and numbers of eight, and some numbers of each row."""


class Memory(TorchDispatchMode):
    """Counts the bytes of tensors that live, and the most that ever did."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call, and count its allocations."""
        for tensor in tree_leaves((args, kwargs)):  # earlier allocations do not count
            self._note(tensor, is_new=False)
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            self._note(tensor, is_new=True)
        self.most = max(self.most, sum(self.live.values()))
        return made

    def _note(self, tensor: Any, *, is_new: bool) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes() if is_new else 0
                weakref.finalize(storage, self.live.pop, storage._cdata, None)


def test_what_is_counted() -> None:
    before = torch.ones(500)
    with Memory() as seen:
        assert before.view(5, 100).sum() == 500 and seen.most < 100, "what was there before is none"
        first = torch.zeros(1000, dtype=torch.uint8)
        second = first.view(10, 100)[3:]
        assert 1000 <= seen.most < 1100, "a view is none"
        for _ in range(3):
            third = first + 1
        del third
        assert 3000 <= seen.most < 3100 and sum(seen.live.values()) == 1000, (
            "the last one lives until the next is there"
        )
        del first
        assert sum(seen.live.values()) == 1000
        del second
        assert not sum(seen.live.values())


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepack, "_CHUNK", PART)
    monkeypatch.setattr(fp4_blocks, "CHUNK", PART)
    monkeypatch.setattr(packed, "_WRITTEN", PART)


@pytest.mark.parametrize(("format", "activations"), RECIPES)
def test_a_layer_is_packed_and_kept_in_two_tensors(
    format: str, activations: str, tmp_path: Path, in_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = quantize_weight(torch.randn(N, K, generator=torch.Generator().manual_seed(0)), format)
    stored = {f"a{part}": tensor for part, tensor in spelling_of(format).write(weight).items()}
    checkpoint, absmax = (
        open_checkpoint(save(tmp_path / "a.safetensors", stored)),
        1.0 if activations == "nvfp4" else None,
    )
    more = {"format": format, "activations": activations, "cache": True, "input_absmax": absmax}
    with Memory():
        QuantLinear.from_checkpoint(checkpoint, "a", **more)  # tables made and modules of torch imported once
    (kept,) = (tmp_path / packed.CACHE).iterdir()
    kept.unlink()
    tracemalloc.start()
    with Memory() as seen:
        QuantLinear.from_checkpoint(checkpoint, "a", **more)
    most_of_python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    two = weight.nbytes + kept.stat().st_size
    assert weight.nbytes <= seen.most <= two + IN_WORK
    assert most_of_python <= 300_000 + PART < weight.nbytes
    assert 0.5 * two > IN_WORK, "else a third copy would not be seen"


def test_a_module_is_saved_part_by_part(tmp_path: Path, in_parts: None) -> None:
    module = nn.Linear(K, N)
    module.weight = nn.Parameter(torch.randn(K, N).t())  # not contiguous
    tracemalloc.start()
    with Memory() as seen:
        save_packed(module, tmp_path / "a.safetensors")
    assert seen.most <= 4 * PART and tracemalloc.get_traced_memory()[1] <= 300_000 + PART
    tracemalloc.stop()
    assert torch.equal(open_checkpoint(tmp_path / "a.safetensors").read("weight"), module.weight)
