"""Conversions: the outcome for each tensor, interruption, and refusals."""

import errno
import json
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from gemmill.checkpoints import convert as module
from gemmill.checkpoints.convert import convert, is_converted
from gemmill.checkpoints.file import CheckpointError, Stored, read_metadata
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.steps import Asked
from gemmill.quantize import layer_error, quantize_weight
from stored import NVFP4, Seen, drawn, model, save, shards


def test_layers_change_and_all_else_stays(tmp_path: Path) -> None:
    source, out = model(tmp_path), tmp_path / "out"
    made = convert(source, out, NVFP4)
    before, after = open_checkpoint(source), open_checkpoint(out)
    assert sorted(path.name for path in out.iterdir()) == [
        "conversion.json",
        "m-1.safetensors",
        "m-2.safetensors",
        "model.safetensors.index.json",
    ]
    layers = {name for name in before if "up.weight" in name}
    for name in before:
        if name not in layers:
            assert torch.equal(after.read(name), before.read(name)), name
            continue
        wanted, layer = quantize_weight(before.read(name), "nvfp4"), name.removesuffix(".weight")
        assert name not in after
        assert torch.equal(after.read(f"{layer}.weight_packed"), wanted.codes)
        assert torch.equal(after.read(f"{layer}.weight_scale").view(torch.uint8), wanted.scales)
        assert torch.equal(after.read(f"{layer}.weight_global_scale"), wanted.global_scale)
        assert after.tensors[f"{layer}.weight_packed"].path.name == before.tensors[name].path.name
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == made.written_bytes == sum(s.nbytes for s in after.tensors.values())
    assert made.read_bytes == sum(s.nbytes for s in before.tensors.values())
    errors = [
        layer_error(n.removesuffix(".weight"), before.read(n), quantize_weight(before.read(n), "nvfp4")) for n in layers
    ]
    assert made.layers == tuple(sorted(errors, key=lambda e: -e.weights))
    report = json.loads((out / "conversion.json").read_text())
    assert [layer["name"] for layer in report["layers"]] == [layer.name for layer in made.layers]


def test_what_a_file_tells_beside_its_tensors_is_kept(tmp_path: Path) -> None:
    source, told = model(tmp_path), {"format": "pt", "author": "a\nb", "trained": '{"steps": 3}'}
    with_metadata(source / "m-1.safetensors", told)
    convert(source, tmp_path / "out", NVFP4)
    convert(source / "m-1.safetensors", tmp_path / "out.safetensors", Asked(to="int8"))
    assert read_metadata(tmp_path / "out" / "m-1.safetensors") == told
    assert read_metadata(tmp_path / "out" / "m-2.safetensors") == {"format": "pt"}
    assert read_metadata(tmp_path / "out.safetensors") == told
    open_checkpoint(tmp_path / "out")


def test_files_that_hold_no_weights_come_along(tmp_path: Path) -> None:
    source, out = model(tmp_path), tmp_path / "out"
    copied = {
        "tokenizer.json": b"{}",
        "generation_config.json": b'{"top_k": 3}',
        "modeling.py": b"x = 1\n",
        "LICENSE": b"yes",
    }
    left = {"pytorch_model.bin": b"1", "pytorch_model.bin.index.json": b"{}", ".hidden": b"2", "conversion.json": b"[]"}
    for name, data in (copied | left).items():
        (source / name).write_bytes(data)
    (source / "original").mkdir()
    (source / "original" / "params.json").write_text("{}")
    out.mkdir()
    (out / "LICENSE").write_bytes(b"mine")
    convert(source, out, NVFP4)
    assert {path.name for path in out.iterdir()} == {
        "m-1.safetensors",
        "m-2.safetensors",
        "model.safetensors.index.json",
        "conversion.json",
        *copied,
    }
    for name, data in (copied | {"LICENSE": b"mine"}).items():
        assert (out / name).read_bytes() == data, name
    assert json.loads((out / "conversion.json").read_text())["layers"]


def with_metadata(path: Path, told: dict[str, str]) -> None:
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.dumps({"__metadata__": told} | json.loads(whole[8 : 8 + size])).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + size :])


@pytest.mark.parametrize("name", ["conversion.json", ".checkpoint.journal", ".m-1.safetensors.partial"])
def test_shards_with_names_of_files_that_a_conversion_writes(name: str, tmp_path: Path) -> None:
    files = {"m-1.safetensors": {"a.weight": drawn(4, 32)}, name: {"b.weight": drawn(4, 32)}}
    source = shards(tmp_path / "in", files)
    with pytest.raises(CheckpointError) as error:
        convert(source, tmp_path / "out", NVFP4)
    assert str(error.value) == (
        f"{name} is a shard of {source}, and the conversion writes a file of its own under that name: rename the shard, in the index too"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.conversion.json", ".a.journal", ".a.partial"])
def test_a_source_with_the_name_of_a_file_that_its_conversion_writes(name: str, tmp_path: Path) -> None:
    source = save(tmp_path / name, {"a.weight": drawn(4, 32)})
    before = source.read_bytes()
    with pytest.raises(CheckpointError, match="and the conversion writes a file of its own under that name: rename"):
        convert(source, tmp_path / "b" / ".." / "a", NVFP4)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("asked", "is_stated"),
    [
        (Asked(to="nvfp4", requantize=True), True),
        (Asked(to="nvfp4", keep=("layers.0.*",)), False),
        (Asked(to="nvfp4_2to4", requantize=True), False),
    ],
)
def test_a_config_that_cannot_say_how_layers_are_quantised(asked: Asked, is_stated: bool, tmp_path: Path) -> None:
    source, between, out = model(tmp_path), tmp_path / "between", tmp_path / "out"
    convert(source, between, Asked(to="channel", only=("layers.0.*",)))
    (between / "config.json").write_text("{}")
    assert convert(between, out, asked).is_stated == is_stated
    assert ("quantization_config" in json.loads((out / "config.json").read_text())) == is_stated
    (between / "config.json").unlink()
    assert convert(between, tmp_path / "without", asked).is_stated, "there is nothing to say it in"


def test_two_layers_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "in.safetensors", {f"{i}.weight": drawn(4, 32) for i in range(6)})
    made, read, most = [0], [0], [0]
    original, quantise = Stored.read, module.quantize_weight

    def reading(self: Stored, into: torch.Tensor | None = None) -> torch.Tensor:
        read[0] += 1
        most[0] = max(most[0], read[0] - made[0])
        return original(self, into)

    def making(*args: object, **more: object) -> object:
        result = quantise(*args, **more)
        made[0] += 1
        return result

    monkeypatch.setattr(Stored, "read", reading)
    monkeypatch.setattr(module, "quantize_weight", making)
    convert(source, tmp_path / "out.safetensors", NVFP4)
    assert read == made == [6] and most[0] <= 2


def test_the_next_layer_is_read_beside_the_one_that_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {f"{i}.weight": drawn(8 - i, 32) for i in range(5)}  # each fits into the memory of the one before
    source = save(tmp_path / "in.safetensors", layers)
    ahead, original, quantise = threading.Semaphore(0), Stored.read, module.quantize_weight

    def reading(self: Stored, into: torch.Tensor | None = None) -> torch.Tensor:
        tensor = original(self, into)
        ahead.release()
        return tensor

    def making(weight: torch.Tensor, *args: object, **more: object) -> object:
        for _ in range(2 if len(weight) == 8 else len(weight) > 4):  # until the next one is there
            assert ahead.acquire(timeout=60)
        return quantise(weight, *args, **more)

    monkeypatch.setattr(Stored, "read", reading)
    monkeypatch.setattr(module, "quantize_weight", making)
    convert(source, tmp_path / "out.safetensors", NVFP4)
    monkeypatch.undo()
    made = open_checkpoint(tmp_path / "out.safetensors")
    for name, weight in layers.items():
        assert torch.equal(made.read(f"{name}_packed"), quantize_weight(weight, "nvfp4").codes)


def test_inputs_tell_the_error_of_outputs(tmp_path: Path) -> None:
    source = save(tmp_path / "in.safetensors", {"a.weight": drawn(8, 64), "b.weight": drawn(8, 64)})
    seen = save(tmp_path / "inputs.safetensors", {"a": drawn(5, 64)})
    made = convert(source, tmp_path / "out.safetensors", Asked(to="mxfp4"), inputs=open_checkpoint(seen))
    outputs = {layer.name: layer.outputs for layer in made.layers}
    wanted = layer_error("a", drawn(8, 64), quantize_weight(drawn(8, 64), "mxfp4"), drawn(5, 64))
    assert outputs == {"a": wanted.outputs, "b": None}


def test_rows_that_do_not_fold_are_named_in_the_report(tmp_path: Path) -> None:
    weight = torch.ones(9, 64)
    weight[[1, 7], 32:] = 2.0**-15
    weight[4, 32:] = 2.0**-20
    source = save(tmp_path / "in.safetensors", {"a.weight": weight, "b.weight": weight[:1], "c.weight": drawn(4, 32)})
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.safetensors", Asked(to="mxfp4"), observer=Seen(2))
    made = convert(source, tmp_path / "out.safetensors", Asked(to="mxfp4"))  # the first two are read from the journal
    found = {layer.name: layer for layer in made.layers}
    assert found["a"] == layer_error("a", weight, quantize_weight(weight, "mxfp4"))
    assert found["a"].unfolded_rows == ((1, 15), (4, 20), (7, 15)) and found["b"].unfolded_rows == ()
    told = {layer["name"]: layer for layer in json.loads(made.report.read_text())["layers"]}
    assert (told["a"]["unfolded"], told["a"]["unfolded_rows"]) == (3, [[1, 15], [4, 20], [7, 15]])


def test_what_was_converted_is_known(tmp_path: Path) -> None:
    source = save(tmp_path / "in.safetensors", {"a.weight": drawn(4, 32)})
    folder = shards(tmp_path / "in", {"m.safetensors": {"a.weight": drawn(4, 32)}})
    for given, out in ((source, tmp_path / "out.safetensors"), (folder, tmp_path / "out")):
        assert not is_converted(given, out, NVFP4)
        convert(given, out, NVFP4)
        assert is_converted(given, out, NVFP4) and not is_converted(given, out, Asked(to="mxfp4"))
    before = source.stat().st_mtime_ns
    save(source, {"a.weight": drawn(4, 32) + 1})
    os.utime(source, ns=(before + 1, before + 1))  # as large as it was
    assert not is_converted(source, tmp_path / "out.safetensors", NVFP4)
    save(source, {"a.weight": drawn(4, 64)})
    os.utime(source, ns=(before, before))
    assert not is_converted(source, tmp_path / "out.safetensors", NVFP4)


def test_globs_choose_layers(tmp_path: Path) -> None:
    source = model(tmp_path)
    made = convert(source, tmp_path / "a", Asked(to="channel", keep=("layers.0.*",)))
    assert [layer.name for layer in made.layers] == ["layers.1.up"]
    made = convert(source, tmp_path / "b", Asked(to="channel", only=("*head*", "layers.0.*")))
    assert sorted(layer.name for layer in made.layers) == ["layers.0.up", "lm_head"]


def test_layers_of_another_format_are_rounded_again_only_if_asked(tmp_path: Path) -> None:
    source = model(tmp_path)
    convert(source, tmp_path / "fp8", Asked(to="channel"))
    with pytest.raises(CheckpointError) as error:
        convert(tmp_path / "fp8", tmp_path / "fp4", NVFP4)
    assert str(error.value) == (
        "layers.0.up is channel already: to nvfp4 it would be rounded twice; pass --requantize if that is meant, or --to channel to "
        "change its names"
    )
    assert not (tmp_path / "fp4").exists()
    made = convert(tmp_path / "fp8", tmp_path / "fp4", Asked(to="nvfp4", requantize=True))
    once = quantize_weight(drawn(48, 64), "channel").values()
    (layer,) = (layer for layer in made.layers if layer.name == "layers.0.up")
    assert layer == layer_error("layers.0.up", once, quantize_weight(once, "nvfp4"))


def one(tmp_path: Path, **tensors: torch.Tensor) -> Path:
    return save(tmp_path / "in.safetensors", {name.replace("_", "."): tensor for name, tensor in tensors.items()})


BAD = {
    "a is [3, 40]": ({"a.weight": drawn(3, 40)}, NVFP4),
    "a has codes of [3, 40]": (
        {"a.weight": torch.zeros(3, 40).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(3, 1)},
        Asked(to="nvfp4", requantize=True),
    ),
    "nan": ({"a.weight": torch.tensor([[1.0] * 16, [float("nan")] * 16])}, NVFP4),
    "infinite": ({"a.weight": torch.tensor([[1.0] * 16, [1.0, -float("inf")] * 8])}, NVFP4),
    "codes without a scale": ({"a.weight": torch.zeros(4, 32).to(torch.float8_e4m3fn)}, NVFP4),
    "scales that do not fit": (
        {"a.weight": torch.zeros(4, 32, dtype=torch.int8), "a.weight_scale": torch.zeros(5, 1)},
        Asked(to="int8"),
    ),
    "scales without codes": ({"b.weight": drawn(4, 32), "a.weight_scale": torch.zeros(5, 1)}, NVFP4),
    "no layer": ({"a.bias": drawn(4)}, NVFP4),
    "no layer that fits": ({"a.weight": drawn(4, 32)}, Asked(to="nvfp4", only=("b*",))),
    "a name that is taken": ({"a.weight": drawn(4, 32), "a.weight_packed": drawn(4)}, NVFP4),
    "no format": ({"a.weight": drawn(4, 32)}, Asked(to="fp4")),
    "codes of many layers without a scale": (
        {f"layers.{i}.up.weight": torch.zeros(4, 32).to(torch.float8_e4m3fn) for i in range(30)},
        NVFP4,
    ),
    "scales of many layers without codes": (
        {"b.weight": drawn(4, 32)} | {f"{i}.weight_scale_2": torch.zeros(1) for i in range(3)},
        NVFP4,
    ),
    "experts": (
        {"a_blocks": torch.zeros(2, 4, 2, 16, dtype=torch.uint8), "a_scales": torch.zeros(2, 4, 2, dtype=torch.uint8)},
        Asked(to="mxfp4"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    list(
        zip(
            BAD,
            [
                "a.weight is [3, 40]: nvfp4 takes K in multiples of its group of 16, got K = 40: pad K with zeros to 48, or leave it as "
                "it is with --keep 'a.weight'",
                "a is [3, 40] of F8_E4M3 codes: nvfp4 takes K in multiples of its group of 16, got K = 40: pad K with zeros to 48, or "
                "leave it as it is with --keep 'a.weight'",
                "a: weight [1, 0] is nan: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is; --keep 'a.weight' leaves it as it is",
                "a: weight [1, 1] is -inf: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is; --keep 'a.weight' leaves it as it is",
                "a.weight is F8_E4M3 [4, 32], which is quantised already, and its scale is missing: expected a.weight_scale or another "
                "project's name for it",
                "a.weight is I8 [4, 32], which is quantised already, and its scales fit no format: a.weight_scale F32 [5, 1]",
                "a.weight_scale is the scale of a layer whose weight is missing: expected a.weight, a.weight_packed",
                "{} has no layer to convert: a layer is a float matrix whose key ends in .weight, beside what is kept, *embed*, *norm*, "
                "*lm_head*, head.*, *router*, *.gate.weight, *.gate.wg.weight",
                "{} has no layer to convert: a layer is a float matrix whose key ends in .weight, that fits b*",
                "a.weight_packed would be written twice, for a tensor of that name and for a layer: leave one out with --keep",
                "there is no weight format 'fp4': the formats are channel, int8, int8_asymmetric, block128, block32, group128, nvfp4, mxfp4, mxfp6, mxfp8, nvfp4_2to4, and bf16",
                "30 layers are quantised already, and their scales are missing: expected layers.{{0-29}}.up.weight_scale or another "
                "project's name for it",
                "{{0-2}}.weight_scale_2 are scales of layers whose weight is missing: expected {{0-2}}.weight",
                "a has experts in one tensor, and the names of compressed-tensors are for one matrix each: keep it, or choose other names",
            ],
            strict=True,
        )
    ),
)
def test_what_is_refused(kind: str, sentence: str, tmp_path: Path) -> None:
    tensors, asked = BAD[kind]
    source = save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(CheckpointError) as error:
        convert(source, tmp_path / "out.safetensors", asked)
    assert str(error.value) == sentence.format(source)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("source", "out", "sentence"),
    [
        ("in", "there", "{}/there is a file, and {}/in is a folder: name a folder"),
        ("there", "in", "{}/in is a folder, and {}/there is a file: name a file"),
        ("there", "there", "{}/there exists: remove it, or name another output"),
        ("in", "in", "{}/in/m-1.safetensors exists: remove it, or name another output"),
    ],
)
def test_outputs_that_exist(source: str, out: str, sentence: str, tmp_path: Path) -> None:
    model(tmp_path)
    save(tmp_path / "there", {"a.weight": drawn(4, 32)})
    with pytest.raises(CheckpointError) as error:
        convert(tmp_path / source, tmp_path / out, NVFP4)
    assert str(error.value) == sentence.format(tmp_path, tmp_path)


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(tmp_path)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100))
    with pytest.raises(
        CheckpointError,
        match=r"out has no space left for the checkpoint: it takes \d+ bytes and 100 are free; nothing was written$",
    ):
        convert(source, tmp_path / "out", NVFP4)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_disk_that_becomes_full_is_told_and_the_conversion_goes_on(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, original = model(tmp_path), tmp_path / "out", getattr(os, call)
    count = [0]

    def full(*args: object) -> object:
        count[0] += 1
        if count[0] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(
            CheckpointError,
            match=r"^no space is left for .*m-[12]\.safetensors: free some and run the same again, which goes on where this ended$",
        ):
            convert(source, out, NVFP4)
    convert(source, out, NVFP4)
    convert(source, tmp_path / "whole", NVFP4)
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_disk_without_room_for_a_file_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out, original = model(tmp_path), tmp_path / "out", Path.open

    def full(path: Path, *args: object, **more: object) -> object:
        if path.name.endswith((".partial", ".journal")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CheckpointError, match=r"^no space is left for .*out: free some and run the same again, which"):
        convert(source, out, NVFP4)


@pytest.mark.parametrize("file", [".checkpoint.journal", "conversion.json"])
def test_a_disk_that_is_full_to_the_last_byte_is_told_too(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, original = model(tmp_path), tmp_path / "out", os.fsync

    def full(number: int) -> None:
        name = Path(f"/proc/self/fd/{number}").readlink().name
        if name.removeprefix(".").startswith(file.removeprefix(".")):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            CheckpointError, match=r"^no space is left for .*out.*: free some and run the same again, which"
        ):
            convert(source, out, NVFP4)
    assert not (out / "conversion.json").exists()
    convert(source, out, NVFP4)
    convert(source, tmp_path / "whole", NVFP4)
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
