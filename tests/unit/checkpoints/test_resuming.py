"""Conversions that are interrupted, killed or refused go on: the repeated work, and the files on the disk."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gemmill.checkpoints import work, writing
from gemmill.checkpoints.convert import convert
from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.checkpoints.steps import Asked
from gemmill.checkpoints.work import Work
from stored import NVFP4, Seen, drawn, model, save


@pytest.mark.parametrize("after", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("killed", [False, True])
def test_an_interrupted_conversion_goes_on(
    after: int, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path)
    convert(source, tmp_path / "whole", NVFP4)
    out, seen = tmp_path / "out", Seen(after)
    with monkeypatch.context() as patch:
        if killed:  # without a chance to note its progress
            patch.setattr(Work, "leave", lambda work, close=True: work.journal.close(remove=False) if close else None)
        with pytest.raises(KeyboardInterrupt):
            convert(source, out, NVFP4, observer=seen)
    assert not (out / "model.safetensors.index.json").exists()
    for path in out.glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes(), "whole, or not there"
    again = Seen()
    convert(source, out, NVFP4, observer=again)
    if not killed:
        assert seen.steps + again.steps == list(dict.fromkeys(seen.steps + again.steps)), "nothing twice"
        assert (again.done > 0) == bool(after)
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list(out.iterdir())) == len(list((tmp_path / "whole").iterdir()))


def test_a_journal_that_was_cut_off_is_read(tmp_path: Path) -> None:
    source, out = model(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, NVFP4, observer=Seen(2))
    journal = out / ".checkpoint.journal"
    journal.write_text(journal.read_text()[:-9])
    again = Seen()
    convert(source, out, NVFP4, observer=again)
    assert len(again.steps) == 7


@pytest.mark.parametrize("text", ['{"dige', "", "[3]\n"])
def test_a_journal_whose_first_line_was_cut_off_is_a_new_one(text: str, tmp_path: Path) -> None:
    source, out = model(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / ".checkpoint.journal").write_text(text)
    convert(source, out, NVFP4)
    convert(source, tmp_path / "whole", NVFP4)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in (tmp_path / "whole").iterdir())


def test_another_conversion_does_not_go_on(tmp_path: Path) -> None:
    source, out = model(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, NVFP4, observer=Seen(2))
    with pytest.raises(CheckpointError) as error:
        convert(source, out, Asked(to="mxfp4"))
    assert str(error.value) == (
        f"{out}/.checkpoint.journal is of another conversion, which did not end: remove it and start anew, or ask for the same as "
        "then"
    )


def cut(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("lose", [Path.unlink, cut])
@pytest.mark.parametrize("after", [2, 4])
def test_a_shard_whose_file_is_gone_or_cut_off_is_made_again(
    lose: Callable[[Path], None], after: int, tmp_path: Path
) -> None:
    """An unfinished one, and a whole one, while the journal says that its tensors were written."""
    source, out = model(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, NVFP4, observer=Seen(after))
    lose(next(out.glob("*.safetensors" if after == 4 else "*.partial"), out / ".m-1.safetensors.partial"))
    convert(source, out, NVFP4)
    convert(source, tmp_path / "whole", NVFP4)
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_file_is_on_the_disk_before_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All writes to a shard are synced by the time at which it gets its name."""
    unsynced, appeared = set[str](), list[str]()
    write, sync, replace = os.pwrite, os.fsync, Path.replace

    def named(number: int) -> str:
        return Path(f"/proc/self/fd/{number}").readlink().name

    def writing(number: int, *more: object) -> int:
        unsynced.add(named(number))
        return write(number, *more)

    def syncing(number: int) -> None:
        unsynced.discard(named(number))
        assert not (unsynced and named(number).endswith(".journal")), "done is what is on the disk"
        sync(number)

    def appearing(path: Path, target: Path) -> Path:
        assert path.name not in unsynced
        appeared.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(os, "pwrite", writing)
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", appearing)
    shard = writing_of(tmp_path / "a.safetensors")
    shard.publish()
    assert appeared == ["a.safetensors"]
    convert(model(tmp_path), tmp_path / "out", NVFP4)
    assert appeared[1:3] == ["m-1.safetensors", "m-2.safetensors"]


def writing_of(path: Path) -> writing.Shard:
    shard = writing.Shard(path, writing.FilePlaces({"a": ("U8", (4,))}, {}), goes_on=False)
    shard.write("a", torch.arange(4, dtype=torch.uint8))
    return shard


def test_much_that_was_done_is_noted_while_a_shard_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a killed process, without a chance to note its progress."""
    source = save(tmp_path / "in.safetensors", {f"{i}.weight": drawn(4, 32) for i in range(8)})  # 256 bytes each
    monkeypatch.setattr(work, "SYNCED", 600)
    leave = Work.leave
    with monkeypatch.context() as patch:
        patch.setattr(
            Work,
            "leave",
            lambda self, close=True: self.journal.close(remove=False) if close else leave(self, close=False),
        )
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "out.safetensors", NVFP4, observer=Seen(7))
    again = Seen()
    convert(source, tmp_path / "out.safetensors", NVFP4, observer=again)
    assert again.steps == ["6", "7"]
    convert(source, tmp_path / "whole.safetensors", NVFP4)
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_a_layer_that_was_refused_is_kept_and_what_was_done_stays(tmp_path: Path) -> None:
    source, out, seen = model(tmp_path), tmp_path / "out", Seen()
    second = dict(open_checkpoint(source).tensors)
    tensors = {name: s.read() for name, s in second.items() if s.path.name == "m-2.safetensors"}
    tensors["layers.1.up.weight"][3, 5] = torch.nan
    save(source / "m-2.safetensors", tensors)
    with pytest.raises(CheckpointError) as error:
        convert(source, out, NVFP4, observer=seen)
    assert str(error.value) == (
        "layers.1.up: weight [3, 5] is nan: weights that are quantised are finite, so repair the checkpoint or leave the layer as it "
        "is; --keep 'layers.1.up.weight' leaves it as it is"
    )
    again, asked = Seen(), Asked(to="nvfp4", keep=("layers.1.up.weight",))
    made = convert(source, out, asked, observer=again)
    assert len(seen.steps) == 5 and sorted(again.steps) == sorted(tensors), "the first shard is there"
    whole = convert(source, tmp_path / "whole", asked)
    assert made.layers == whole.layers and [layer.name for layer in made.layers] == ["layers.0.up"]
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list(out.iterdir())) == len(list((tmp_path / "whole").iterdir()))


def test_a_shard_in_which_another_layer_is_kept_is_begun_again(tmp_path: Path) -> None:
    source = save(tmp_path / "in.safetensors", {f"{i}.weight": drawn(4, 32) for i in range(4)})
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.safetensors", Asked(to="nvfp4", keep=("3.weight",)), observer=Seen(2))
    again, asked = Seen(), Asked(to="nvfp4", keep=("2.weight",))  # of the same size
    convert(source, tmp_path / "out.safetensors", asked, observer=again)
    convert(source, tmp_path / "whole.safetensors", asked)
    assert len(again.steps) == 4
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / ".checkpoint.journal"
    with pytest.raises(CheckpointError) as caught:
        writing.Journal(path, "digest")
    assert str(caught.value) == (
        f"{path} cannot be locked (No locks available): convert to a file system that has locks"
    )


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    journal = writing.Journal(tmp_path / ".checkpoint.journal", "digest")
    with pytest.raises(CheckpointError, match=r"^another process is converting to .*: wait for it$"):
        writing.Journal(tmp_path / ".checkpoint.journal", "digest")
    journal.close(remove=True)
