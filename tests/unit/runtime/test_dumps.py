"""GEMMILL_DUMP: which calls are saved, with which bytes, and that they come back as they were."""

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gemmill import settings
from gemmill.checkpoints.file import CheckpointError, read_metadata
from gemmill.numerics.dumped import read_dump
from gemmill.runtime import ops
from gemmill.runtime.dumps import Dumps
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME
from stored import save

MM, QUANT = BY_NAME["cutlass_scaled_mm"], BY_NAME["dynamic_per_token_scaled_fp8_quant"]
E4M3 = torch.float8_e4m3fn


def operands(m: int = 5, k: int = 32) -> list:
    """Rows of a lie apart, b is column-major and begins one element behind an aligned address."""
    g = torch.Generator().manual_seed(m)
    a = torch.randn(m, k + 16, generator=g).to(E4M3)[:, :k]
    b = torch.randn(16 * k + 1, generator=g).to(E4M3)[1:].view(16, k).t()
    return [torch.full((m, 16), torch.nan, dtype=torch.bfloat16), a, b, torch.rand(m, 1), torch.rand(1, 16), None]


def dumps(folder: Path, calls: int = 9, most_bytes: int = 1 << 20, *, capturing: bool = False) -> Dumps:
    def explain(op: str, args: list) -> tuple[str, SimpleNamespace]:
        return "0123abcd4567", SimpleNamespace(entry=SimpleNamespace(name=f"variant of {op}"))

    return Dumps(folder, explain, calls, most_bytes, capturing=lambda: capturing)


def wrapped(of: Dumps, op=MM):
    return of.around(op, lambda *args: by_reference(op, args))


def bits(tensor: torch.Tensor) -> list:
    return tensor.contiguous().view(torch.uint8).tolist()


def test_a_call_comes_back_as_it_was(tmp_path: Path) -> None:
    given = operands()
    before = [bits(x) if isinstance(x, torch.Tensor) else x for x in given]
    wrapped(dumps(tmp_path))(*given)
    (path,) = tmp_path.iterdir()
    call = read_dump(path)
    assert (call.op, call.variant, call.build) == (MM.name, f"variant of {MM.name}", "0123abcd4567")
    fresh = call.arguments("cpu")
    assert [bits(x) if isinstance(x, torch.Tensor) else x for x in fresh] == before
    for one, other in zip(fresh[:-1], given[:-1], strict=True):
        assert (one.dtype, one.stride(), one.data_ptr() % 256) == (other.dtype, other.stride(), other.data_ptr() % 256)
    assert list(call.wrote) == ["out"] and bits(call.wrote["out"]) == bits(given[0])
    assert call.errors() == {"out": "equals the reference"}
    assert str(call).startswith("out 5 x 16, a 5 x 32, b 32 x 16, ") and str(call).endswith("as saved on cpu")


def test_plain_arguments_come_back_too(tmp_path: Path) -> None:
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    given = [torch.empty(3, 64, dtype=E4M3), x, torch.empty(3, 1), None]
    wrapped(dumps(tmp_path), QUANT)(*given)
    (path,) = tmp_path.iterdir()
    call = read_dump(path)
    assert call.arguments("cpu")[3] is None and sorted(call.wrote) == ["result", "scale"]
    assert set(call.errors().values()) == {"equals the reference"}
    call.data["wrote.result"][0] ^= 1
    told = call.errors()
    assert told["scale"] == "equals the reference" and re.fullmatch(
        r"is \S+ off the reference, relative in the norm", told["result"]
    )


def test_one_is_saved_for_each_bucket_of_rows_up_to_the_limit(tmp_path: Path) -> None:
    call = wrapped(dumps(tmp_path, calls=3))
    for m in (5, 6, 8, 9, 16, 17, 40):
        call(*operands(m))
    kept = [read_dump(path).layouts["given.a"].shape[0] for path in sorted(tmp_path.iterdir())]
    assert kept == [5, 9, 17]


def test_one_that_is_too_large_is_told_and_made(tmp_path: Path, caplog) -> None:
    given = operands()
    call = wrapped(dumps(tmp_path, most_bytes=100))
    call(*given)
    call(*operands(50))
    assert not given[0].isnan().any() and not list(tmp_path.iterdir())
    assert caplog.messages == [
        "GEMMILL_DUMP: a call of cutlass_scaled_mm has 1140 bytes and 100 are left: GEMMILL_DUMP_BYTES allows more"
    ]


def test_captured_calls_are_told_of_once(tmp_path: Path, caplog) -> None:
    call = wrapped(dumps(tmp_path, capturing=True))
    call(*operands(5))
    call(*operands(50))
    assert caplog.messages == [
        "GEMMILL_DUMP: calls that a CUDA graph captures are not saved: make one without the graph"
    ]
    assert not list(tmp_path.iterdir())


def test_a_call_that_fails_is_saved_without_results(tmp_path: Path) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        dumps(tmp_path).around(MM, fails)(*operands())
    (path,) = tmp_path.iterdir()
    assert read_dump(path).wrote == {} and bits(read_dump(path).arguments("cpu")[1]) == bits(operands()[1])


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    call = wrapped(dumps(tmp_path / "file" / "below"))
    call(*operands(5))
    call(*operands(50))
    assert caplog.messages == [
        f"calls cannot be saved in {tmp_path / 'file' / 'below'} (GEMMILL_DUMP): Not a directory"
    ]


def test_files_that_hold_no_call_are_sentences(tmp_path: Path) -> None:
    other = save(tmp_path / "other.safetensors", {"w": torch.ones(2)})
    with pytest.raises(CheckpointError) as caught:
        read_dump(other)
    assert str(caught.value) == f"{other} holds no call of gemmill's: GEMMILL_DUMP=FOLDER saves calls in a folder"
    wrapped(dumps(tmp_path / "calls"))(*operands())
    (path,) = (tmp_path / "calls").iterdir()
    told = json.loads(read_metadata(path)["gemmill"])
    assert told["schema_version"] == 1
    path.write_bytes(path.read_bytes().replace(b'schema_version\\": 1', b'schema_version\\": 2'))
    with pytest.raises(CheckpointError, match=r"is of gemmill .* \(schema 2, op cutlass_scaled_mm\), which this one"):
        read_dump(path)


def test_settings_say_whether_and_how_much(monkeypatch, tmp_path: Path) -> None:
    for name in ("GEMMILL_DUMP", "GEMMILL_DUMP_CALLS", "GEMMILL_DUMP_BYTES", "GEMMILL_NVTX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ops, "_dumps", None)
    assert settings.dump() is None and settings.dump_limits() == (64, 1 << 30) and ops._wrappers() == []
    monkeypatch.setenv("GEMMILL_DUMP", str(tmp_path))
    monkeypatch.setenv("GEMMILL_DUMP_CALLS", "2")
    (first,), (second,) = ops._wrappers(), ops._wrappers()
    assert first is second, "limits are the process's"
    monkeypatch.setenv("GEMMILL_DUMP_BYTES", "1e9")
    with pytest.raises(ValueError, match="GEMMILL_DUMP_BYTES is '1e9': it must be a whole number of at least 1"):
        settings.dump_limits()
