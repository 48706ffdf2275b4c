"""Safetensors files are read as the format's package reads them, and damaged ones give a sentence."""

import json
from pathlib import Path
from random import Random

import pytest
import torch

from gemmill.checkpoints.file import DTYPES, CheckpointError, bytes_of, header_of, read_header, read_metadata
from gemmill.checkpoints.folder import open_checkpoint
from stored import save, shards


def put(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize("word", DTYPES)
def test_every_dtype_comes_back(word: str, tmp_path: Path) -> None:
    bits = torch.arange(6 * DTYPES[word].itemsize, dtype=torch.uint8) % 2
    tensor = bits.view(DTYPES[word]).view(2, 3)
    header, places = header_of({"a": (word, (0,)), "b": (word, (2, 3)), "c": ("U8", ())})
    assert places["b"][1] - places["b"][0] == tensor.nbytes and len(header) % 8 == 0
    path = tmp_path / "a.safetensors"
    path.write_bytes(header + bytes(bytes_of(tensor)) + b"\7")
    found = read_header(path)
    assert [(s.name, s.dtype, s.shape) for s in found.values()] == [
        ("a", word, (0,)),
        ("b", word, (2, 3)),
        ("c", "U8", ()),
    ]
    assert torch.equal(found["b"].read().view(torch.uint8), tensor.view(torch.uint8)) and found["c"].read() == 7
    into = torch.empty(2, 3, dtype=DTYPES[word])
    assert found["b"].read(into) is into and torch.equal(into.view(torch.uint8), tensor.view(torch.uint8))


def test_the_package_agrees(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    tensors = {"b": torch.randn(3, 5), "a.weight": torch.arange(7).to(torch.float8_e4m3fn), "empty": torch.zeros(0, 4)}
    package.save_file(tensors, tmp_path / "theirs.safetensors")
    found = read_header(tmp_path / "theirs.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name].read().float(), tensor.float()) for name, tensor in tensors.items())
    header, _ = header_of({name: (stored.dtype, stored.shape) for name, stored in found.items()})
    data = b"".join(bytes(bytes_of(stored.read())) for stored in found.values())
    (tmp_path / "ours.safetensors").write_bytes(header + data)
    ours = package.load_file(tmp_path / "ours.safetensors")
    assert all(torch.equal(ours[name].float(), tensor.float()) for name, tensor in tensors.items())


GOOD = {"a": entry("U8", [4], 0, 4)}
DAMAGED = {
    "is no safetensors file, or cut short: it has 3 bytes, and its header would take 6579813": b"efd",
    "is no safetensors file, or cut short: it has 28 bytes, and its header would take 100": (100).to_bytes(8, "little")
    + b" " * 20,
    "is no safetensors file: its header is no JSON object": (b"[1, 2]", b""),
    "names a twice: which one is meant cannot be told": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        b"1234",
    ),
    'is malformed: its header has {"dtype": "U9", "shape": [4], "data_offsets": [0, 4]} for a': (
        {"a": entry("U9", [4], 0, 4)},
        b"1234",
    ),
    'is malformed: its header has {"shape": [4]} for a': ({"a": {"shape": [4]}}, b""),
    "is malformed: a, F32 of shape [4], takes 16 bytes, and its header gives it 4": (
        {"a": entry("F32", [4], 0, 4)},
        b"1234",
    ),
    "is malformed: b begins at byte 132, and what lies before it ends at 130": (
        {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)},
        b"123456",
    ),
    "is malformed: b begins at byte 129, and what lies before it ends at 132": (
        {"a": entry("U8", [4], 0, 4), "b": entry("U8", [5], 1, 6)},
        b"123456",
    ),
    "is cut short: its tensors end at byte 72, and it has 70: copy it again": (GOOD, b"12"),
    "is malformed: its tensors end at byte 72, and it has 74: copy it again": (GOOD, b"123456"),
}


@pytest.mark.parametrize("sentence", DAMAGED)
def test_damaged_files(sentence: str, tmp_path: Path) -> None:
    path, content = tmp_path / "a.safetensors", DAMAGED[sentence]
    path.write_bytes(content) if isinstance(content, bytes) else put(path, *content)
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert str(error.value) == f"{path} {sentence}"


NO_OBJECT = "is no safetensors file: its header is no JSON object"
UNSOUND = "is malformed: its header has {} for a"
HOSTILE = {
    "nested too deep": (b"[" * 100_000 + b"]" * 100_000, NO_OBJECT),
    "a tensor nested too deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", NO_OBJECT),
    "an integer that Python does not read": (b'{"a":' + b"9" * 10_000 + b"}", NO_OBJECT),
    "no header": (b"", NO_OBJECT),
    "no UTF-8": (b'{"\xff\xfe": 1}', NO_OBJECT),
    "a number for a tensor": (b'{"a": 3}', UNSOUND.format("3")),
    "a list for a dtype": (b'{"a":{"dtype":[],"shape":[4],"data_offsets":[0,4]}}', None),
    "a text for a shape": (b'{"a":{"dtype":"U8","shape":"44","data_offsets":[0,4]}}', None),
    "a float for a size": (b'{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}', None),
    "a bool for a size": (b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', None),
    "no number for a size": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', None),
    "a negative size": (b'{"a":{"dtype":"U8","shape":[-4,-1],"data_offsets":[0,4]}}', None),
    "three offsets": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}}', None),
    "a size of 4,000 digits": (b'{"a":{"dtype":"U8","shape":[1%s],"data_offsets":[0,4]}}' % (b"0" * 3_999), None),
    "offsets beyond every file": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[1%s,4]}}' % (b"0" * 30), None),
    "sizes beyond every memory": (
        b'{"a":{"dtype":"U8","shape":[0,%d,%d],"data_offsets":[0,0]}}' % (2**40, 2**40),
        None,
    ),
    "a thousand dimensions": (json.dumps({"a": entry("U8", [1] * 1000, 0, 1)}).encode(), None),
    "offsets in the other order": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}',
        "is malformed: a, U8 of shape [4], takes 4 bytes, and its header gives it -4",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_headers_that_would_make_a_reader_fail(kind: str, tmp_path: Path) -> None:
    header, sentence = HOSTILE[kind]
    path = put(tmp_path / "a.safetensors", header, b"1234")
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    told = str(error.value)
    assert told == f"{path} {sentence}" if sentence else told.startswith(f"{path} is malformed: its header has {{")
    assert len(told) < len(str(path)) + 500


def test_no_header_raises_anything_else(tmp_path: Path) -> None:
    """Bytes of a header are changed, taken away and doubled."""
    random = Random(0)
    tensors = {"a": entry("U8", [4], 0, 4), "b": entry("F32", [2, 1], 4, 12), "__metadata__": {"format": "pt"}}
    sound = json.dumps(tensors).encode()
    refused = 0
    for _ in range(2_000):
        header = bytearray(sound)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(header))
            match random.randrange(3):
                case 0:
                    header[at] = random.choice(b'[]{}",:-019.eEtfn\\\x00\xff')
                case 1:
                    del header[at : at + random.randint(1, 30)]
                case _:
                    header[at:at] = header[at : at + random.randint(1, 30)]
            header = header or bytearray(b"{")
        path = put(tmp_path / "a.safetensors", bytes(header), bytes(12))
        for read in (read_header, read_metadata):
            try:
                read(path)
            except CheckpointError as error:
                refused += str(error).startswith(f"{path} ")
    assert refused > 2_000


@pytest.mark.parametrize("length", [100_000_000, 100_000_001])
def test_headers_longer_than_the_package_reads_are_not_read(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little"))
    with path.open("r+b") as file:
        file.truncate(length + 8)  # a hole: it takes no space
    for read in (read_header, read_metadata):
        with pytest.raises(CheckpointError) as error:
            read(path)
        too_long = f"{path} is no safetensors file, or cut short: it has {length + 8} bytes, and its header would take {length}"
        assert str(error.value) == (too_long if length > 100_000_000 else f"{path} {NO_OBJECT}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        for read in (read_header, read_metadata):
            with pytest.raises(CheckpointError) as error:
                read(path)
            assert str(error.value) == f"{path} cannot be read: {why}; check the name, or bring the file back"
    stored = read_header(save(tmp_path / "a.safetensors", {"a": torch.zeros(2)}))["a"]
    stored.path.unlink()
    with pytest.raises(
        CheckpointError, match=r"a\.safetensors cannot be read: No such file or directory; check the name"
    ):
        stored.read()


@pytest.mark.parametrize("told", ["[]", "3", '{"a": 1}', '{"a": {"b": "c"}}'])
def test_metadata_is_text(told: str, tmp_path: Path) -> None:
    path = put(tmp_path / "a.safetensors", b'{"__metadata__": %s}' % told.encode())
    assert read_header(path) == {}
    with pytest.raises(CheckpointError) as error:
        read_metadata(path)
    assert str(error.value) == f"{path} is malformed: its __metadata__ is no map from text to text: copy it again"


def test_a_file_that_becomes_shorter_is_told(tmp_path: Path) -> None:
    stored = read_header(save(tmp_path / "a.safetensors", {"a": torch.zeros(100)}))["a"]
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"a\.safetensors became shorter while it was read: a is cut off$"):
        stored.read()


def test_folders_with_and_without_an_index(tmp_path: Path) -> None:
    files = {"1.safetensors": {"a": torch.ones(2)}, "2.safetensors": {"b": torch.zeros(3)}}
    folder = shards(tmp_path / "m", files)
    assert open_checkpoint(folder).read("b").tolist() == [0, 0, 0]
    (folder / "model.safetensors.index.json").unlink()
    found = open_checkpoint(folder)
    assert list(found) == ["a", "b"] and "c" not in found
    with pytest.raises(CheckpointError, match=r"m has no tensor c$"):
        found.read("c")


def spoiled(folder: Path, kind: str) -> None:
    index = folder / "model.safetensors.index.json"
    weight_map = {"a": "1.safetensors", "b": "2.safetensors"}
    if kind == "missing":
        weight_map |= {"c": "2.safetensors", "d": "2.safetensors"}
    elif kind == "exchanged":
        weight_map = {"a": "2.safetensors", "b": "1.safetensors"}
    elif kind == "unknown":
        save(folder / "2.safetensors", {"b": torch.zeros(3), "e": torch.zeros(1)})
    elif kind == "doubled":
        save(folder / "2.safetensors", {"b": torch.zeros(3), "a": torch.zeros(1)})
    elif kind == "doubled in three":
        save(folder / "2.safetensors", {"b": torch.zeros(3), "a": torch.zeros(1)})
        save(folder / "3.safetensors", {"b": torch.zeros(3)})
        weight_map |= {"c": "3.safetensors"}
    elif kind == "many":
        weight_map |= {f"layers.{i}.up.weight": "2.safetensors" for i in range(40)} | {"c": "2.safetensors"}
    elif kind == "long":
        weight_map |= {"c": 300 * "c"}
    elif kind == "no shard":
        weight_map |= {"c": "3.safetensors"}
    elif kind == "outside":
        weight_map |= {"c": "../3.safetensors"}
    elif kind == "two indices":
        (folder / "other.safetensors.index.json").write_text("{}")
    text = json.dumps({"weight_map": weight_map})
    index.write_text({"nested": "[" * 100_000, "no map": "[3]"}.get(kind, text))
    if kind == "no file":
        for file in folder.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("missing", "{} lacks keys in the shards that its index gives: c, d"),
        ("exchanged", "{} lacks keys in the shards that its index gives: a, b"),
        ("unknown", "{} has keys that its index does not know: e"),
        ("doubled", "{} has keys twice, in 1.safetensors and in 2.safetensors: a"),
        (
            "doubled in three",
            "{} has keys twice, in 1.safetensors and in 2.safetensors: a; in 2.safetensors and in 3.safetensors: b",
        ),
        ("nested", "{}/model.safetensors.index.json is no index: it has no weight_map from keys to files beside it"),
        ("no map", "{}/model.safetensors.index.json is no index: it has no weight_map from keys to files beside it"),
        ("long", "{}/model.safetensors.index.json is no index: it has no weight_map from keys to files beside it"),
        ("many", "{} lacks keys in the shards that its index gives: layers.{{0-39}}.up.weight, c"),
        ("no shard", "{} lacks shards that its index names: 3.safetensors"),
        ("outside", "{}/model.safetensors.index.json is no index: it has no weight_map from keys to files beside it"),
        (
            "two indices",
            "{} has 2 indices, model.safetensors.index.json, other.safetensors.index.json: leave one there",
        ),
        ("no file", "{} has no *.safetensors: a checkpoint is such a file, or a folder of them"),
    ],
)
def test_spoiled_folders(kind: str, sentence: str, tmp_path: Path) -> None:
    folder = shards(tmp_path / "m", {"1.safetensors": {"a": torch.ones(2)}, "2.safetensors": {"b": torch.zeros(3)}})
    spoiled(folder, kind)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert str(error.value) == sentence.format(folder)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^there is no checkpoint at .*nothing$"):
        open_checkpoint(tmp_path / "nothing")
