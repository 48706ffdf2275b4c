"""Blocks in turns give the same results as alone; files of packed blocks are read when they are first needed."""

import copy
import os
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gemmill.checkpoints.file import CheckpointError, Stored
from gemmill.nn import Block, FileBlock, InTurns, load_packed, offload, packed, quantize_module, recipes, save_packed


class Layer(nn.Module):
    def __init__(self, seed: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 96), nn.Linear(96, width, bias=False)

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x)))) + shift


def quantised(seed: int) -> Layer:
    layer = Layer(seed).bfloat16().requires_grad_(False)
    quantize_module(layer, "nvfp4")
    return layer


def adapted(seed: int) -> Layer:
    """A layer with an adapter whose factor no other has."""
    layer, drawn = quantised(seed), torch.Generator().manual_seed(seed)
    down, up = torch.randn(4, 64, generator=drawn).bfloat16(), torch.randn(96, 4, generator=drawn).bfloat16()
    layer.up.set_lora(down, up, strength=0.25 * (seed + 1))
    return layer


X = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.mark.parametrize("slots", [2, 3, 7])
@pytest.mark.parametrize("from_files", [False, True])
def test_blocks_in_turns_compute_what_they_compute_alone(slots: int, from_files: bool, tmp_path: Path) -> None:
    layers = [adapted(seed) for seed in range(5)]
    blocks = [Block(layer) for layer in layers]
    if from_files:
        for index, layer in enumerate(layers):
            save_packed(layer, tmp_path / f"block_{index}.safetensors")
        blocks = [FileBlock(tmp_path / f"block_{index}.safetensors", layers[0]) for index in range(5)]
    model = InTurns(layers[0], blocks, device="cpu", slots=slots)
    wanted = X
    for layer in layers:
        wanted = layer(wanted, 0.5)
    for _ in range(3):
        assert torch.equal(model(X, 0.5), wanted)
    assert all(block.host.numel() == blocks[0].host.numel() for block in blocks)


def test_a_copy_has_slots_of_its_own() -> None:
    """Both run in between, and the first may be gone."""
    layers = [adapted(seed) for seed in range(5)]
    model = nn.ModuleDict({"turns": InTurns(layers[0], [Block(layer) for layer in layers], device="cpu")})
    wanted = X
    for layer in layers:
        wanted = layer(wanted)
    model["turns"](X)
    copied = copy.deepcopy(model).eval()
    for each in (model, copied, model, copied):
        assert torch.equal(each["turns"](X), wanted)
    first, second = model["turns"], copied["turns"]
    assert (first.training, second.training) == (True, False)
    assert first._blocks[0] is second._blocks[0], "what lies on the host is read alone"
    for memory in first._memory:
        memory.flat.zero_()
    first._blocks.clear()
    assert torch.equal(second(X), wanted)


def test_every_tensor_of_a_block_begins_at_a_multiple_of_256_bytes() -> None:
    """Kernels read 16 bytes at a time, TMA more: sizes of 1 to 259 bytes lie before one another."""
    module = nn.Module()
    for size in (1, 3, 255, 256, 257, 259):
        module.register_buffer(f"of_{size}", torch.full((size,), size % 251, dtype=torch.uint8))
    memory = offload.Memory(offload.tensors_of(module), torch.device("cpu"))
    starts = [view.data_ptr() - memory.flat.data_ptr() for view in memory.views.values()]
    assert starts == [0, 256, 512, 768, 1024, 1536] and memory.flat.numel() == 2048
    assert torch.equal(Block(module).host[1536:1795], module.of_259)


class Stateful(nn.Linear):
    """A layer whose extra state is its argument."""

    def __init__(self, state: object) -> None:
        super().__init__(4, 4)
        self.state = state

    def get_extra_state(self) -> object:
        return self.state

    def set_extra_state(self, state: object) -> None:
        if state == "bad":
            raise ValueError("the state is bad")
        self.state = state


def test_extra_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    plain, named = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(Stateful({"a": 1}))
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError) as error:
        InTurns(plain, [Block(plain), Block(named)], device="cpu")
    assert str(error.value) == "block 1 is not as the others: it has an extra state of 0"
    with pytest.raises(ValueError) as error:
        InTurns(named[0], [Block(plain[0])], device="cpu")
    assert str(error.value) == "block 0 is not as the others: it lacks an extra state of the module"
    with pytest.raises(ValueError) as error:
        InTurns(named, [Block(named), Block(nn.Sequential(Stateful("bad")))], device="cpu")
    assert str(error.value) == "block 1 is not as the others: the state is bad"
    with pytest.raises(CheckpointError) as error:
        save_packed(nn.Sequential(Stateful(torch.ones(1))), path)
    assert str(error.value) == (
        f"{path} cannot have the extra state of 0: files have it as JSON, and Object of type Tensor is not JSON serializable; keep "
        "the block in memory, as a Block"
    )
    save_packed(named, path)
    other = nn.Sequential(Stateful(None))
    load_packed(other, path)
    assert other[0].state == {"a": 1}
    with pytest.raises(CheckpointError) as error:
        load_packed(plain, path)
    assert (
        str(error.value) == f"{path} is not of such a block: it has an extra state of 0; save it anew from the module"
    )
    packed.write_tensors(path, offload.tensors_of(named), {"packing": recipes.PACKING})  # as files once were
    with pytest.raises(CheckpointError) as error:
        FileBlock(path, named)
    assert (
        str(error.value) == f"{path} is not of such a block: it lacks an extra state of 0; save it anew from the module"
    )


def test_a_call_that_failed_does_not_shift_the_turns() -> None:
    layers = [quantised(seed) for seed in range(3)]
    model = InTurns(layers[0], [Block(layer) for layer in layers], device="cpu")
    hook = model._slots[1].register_forward_pre_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):  # after the first block has run
        model(X)
    hook.remove()
    wanted = X
    for layer in layers:
        wanted = layer(wanted)
    assert torch.equal(model(X), wanted)


def test_a_file_is_read_once_and_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, read = quantised(0), list[str]()
    save_packed(layer, tmp_path / "a.safetensors")
    original = Stored.read
    monkeypatch.setattr(Stored, "read", lambda self, into=None: (read.append(self.name), original(self, into))[1])
    block = FileBlock(tmp_path / "a.safetensors", layer)
    assert not read
    model = InTurns(layer, [block, block], device="cpu")
    model(X)
    assert sorted(read) == sorted(offload.tensors_of(layer))
    model(X)
    assert len(read) == len(set(read))


def test_a_packed_file_fills_a_module(tmp_path: Path) -> None:
    first, second = adapted(0), adapted(1)
    save_packed(first, tmp_path / "a.safetensors")
    load_packed(second, tmp_path / "a.safetensors")
    assert torch.equal(first(X), second(X))


def test_files_of_other_blocks_are_refused(tmp_path: Path) -> None:
    save_packed(quantised(0), tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError) as error:
        load_packed(Layer(0), tmp_path / "a.safetensors")
    assert (
        str(error.value)
        == f"{tmp_path}/a.safetensors is not of such a block: down.alpha is float32 [1] there and missing here"
    )


def test_a_block_whose_file_is_gone_is_told(tmp_path: Path) -> None:
    layer, path = quantised(0), tmp_path / "a.safetensors"
    gone = f"{path} cannot be read: No such file or directory; check the name, or bring the file back"
    for read in (lambda: FileBlock(path, layer), lambda: load_packed(layer, path)):
        with pytest.raises(CheckpointError) as error:
            read()
        assert str(error.value) == gone
    save_packed(layer, path)
    block = FileBlock(path, layer)
    path.unlink()
    with pytest.raises(CheckpointError) as error:
        InTurns(layer, [block], device="cpu")(X)
    assert str(error.value) == gone


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    save_packed(quantised(0), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError) as error:
        save_packed(quantised(1), path)
    assert str(error.value) == (
        f"no space is left for {path}: it takes {len(before)} bytes, and nothing of it was written; free some and do the same again"
    )
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_tensors_of_any_kind_are_saved(tmp_path: Path) -> None:
    module = nn.Module()
    kinds = {
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(3, 4).t(),
        "bytes": torch.arange(9),
    }
    for name, tensor in kinds.items():
        module.register_buffer(name, tensor)
    save_packed(module, tmp_path / "a.safetensors")
    other = nn.Module()
    for name, tensor in kinds.items():
        other.register_buffer(name, torch.full_like(tensor, 7))
    load_packed(other, tmp_path / "a.safetensors")
    assert all(torch.equal(getattr(other, name), tensor) for name, tensor in kinds.items())


def test_blocks_are_of_one_structure() -> None:
    with pytest.raises(ValueError) as error:
        InTurns(Layer(0), [Block(Layer(0)), Block(Layer(0, width=32))], device="cpu")
    assert str(error.value).startswith("block 1 is not as the others: its ") and "expected float32 [" in str(
        error.value
    )
    with pytest.raises(
        ValueError, match=r"^there are 1 slots, expected two or more: one computes while another is filled$"
    ):
        InTurns(Layer(0), [Block(Layer(0))], device="cpu", slots=1)
