"""`gemmill convert`: its output and its exit codes."""

import errno
import io
import os
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gemmill.cli import convert as command
from stored import save


def layers(path: Path, count: int) -> Path:
    generator = torch.Generator().manual_seed(0)
    return save(path, {f"layers.{i}.up.weight": torch.randn(4, 64, generator=generator) for i in range(count)})


def test_the_worst_ten_are_printed_first(gemmill, tmp_path: Path) -> None:
    source = layers(tmp_path / "in.safetensors", 12)
    seen = save(tmp_path / "seen.safetensors", {"layers.3.up": torch.ones(2, 64)})
    done = gemmill("convert", str(source), str(tmp_path / "out.safetensors"), "--to", "mxfp4", "--inputs", str(seen))
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "10 of 12 layers, by relative squared error"
    assert (
        lines[2].split("  ")[0].strip() == "layer"
        and "error of outputs" in lines[2]
        and "rows that do not fold" in lines[2]
    )
    errors = [float(line.split()[4]) for line in lines if line.strip().startswith("layers.")]
    assert len(errors) == 10 and errors == sorted(errors, reverse=True)
    assert lines[-1].endswith("out.safetensors: 12 layers quantised; 12.3 kB became 1.6 kB")


def test_the_bar_begins_when_formats_are_known_to_be_right(gemmill, tmp_path: Path, monkeypatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(command, "console", lambda **_: Console(file=terminal, force_terminal=True, width=100))
    source = layers(tmp_path / "in.safetensors", 2)
    refused = gemmill("convert", source, tmp_path / "out.safetensors", "--to", "fp9")
    assert refused.code == 3 and "fp9" in refused.err and terminal.getvalue() == ""
    assert gemmill("convert", source, tmp_path / "out.safetensors", "--to", "nvfp4").code == 0
    assert "━" in terminal.getvalue()


def test_renamed_layers_are_counted(gemmill, tmp_path: Path) -> None:
    source = layers(tmp_path / "in.safetensors", 2)
    assert gemmill("convert", str(source), str(tmp_path / "a.safetensors"), "--to", "nvfp4").code == 0
    done = gemmill(
        "convert",
        str(tmp_path / "a.safetensors"),
        str(tmp_path / "b.safetensors"),
        "--to",
        "nvfp4",
        "--names",
        "modelopt",
    )
    assert "b.safetensors: 0 layers quantised, 2 layers under other names with the same codes; " in done.out


def test_what_is_wrong_with_a_checkpoint_ends_with_a_sentence(gemmill, tmp_path: Path) -> None:
    (tmp_path / "in.safetensors").write_bytes(b"none")
    done = gemmill("convert", str(tmp_path / "in.safetensors"), str(tmp_path / "out"), "--to", "nvfp4")
    assert done.code == 3 and done.err.splitlines()[-1].startswith(
        f"gemmill: {tmp_path}/in.safetensors is no safetensors file"
    )


def test_a_gpu_that_is_not_there(gemmill, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = gemmill("convert", str(tmp_path), str(tmp_path / "out"), "--to", "nvfp4", "--device", "cuda")
    assert done.code == 3
    assert done.err == "gemmill: --device cuda needs a GPU that torch can use: leave it out to convert on the CPU\n"


def test_layers_are_packed_beside_the_output_if_asked(gemmill, tmp_path: Path) -> None:
    from gemmill.checkpoints.folder import open_checkpoint
    from gemmill.nn import QuantLinear

    source, out = layers(tmp_path / "in.safetensors", 2), tmp_path / "out.safetensors"
    done = gemmill("convert", source, out, "--to", "mxfp4", "--pack", "bf16")
    folder = tmp_path / ".gemmill-packed"
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == (f"{folder}: 2 layers packed for bf16 activations; load them with cache=True")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    QuantLinear.from_checkpoint(open_checkpoint(out), "layers.1.up", cache=True)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before and len(before) == 2
    done = gemmill("convert", source, tmp_path / "other.safetensors", "--to", "mxfp4", "--pack", "int8")
    assert done.code == 3
    assert done.err.splitlines()[-1] == (
        "gemmill: --pack int8: mxfp4 weights take activations bf16 or e4m3 or mxfp4 or mxfp8, got 'int8'"
    )


def test_a_disk_that_is_full_while_packing_and_the_same_again(gemmill, tmp_path: Path, monkeypatch) -> None:
    source, out, written = layers(tmp_path / "in.safetensors", 3), tmp_path / "out.safetensors", []
    original = os.fsync

    def full(number: int) -> None:
        name = Path(f"/proc/self/fd/{number}").readlink()
        if name.parent.name == ".gemmill-packed":
            written.append(name)
            if len(written) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        original(number)

    call = ("convert", source, out, "--to", "mxfp4", "--pack", "bf16")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        done = gemmill(*call)
    folder = tmp_path / ".gemmill-packed"
    assert done.code == 3
    told = done.err.splitlines()[-1]
    assert told.startswith(f"gemmill: layers.1.up: no space is left for {folder}/") and told.endswith(
        "bytes, and nothing of it was written; free some and do the same again"
    )
    (first,) = folder.iterdir()
    before = first.stat().st_mtime_ns
    done = gemmill(*call)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        f"{out} is there already, by the same conversion: only packing is left",
        f"{folder}: 3 layers packed for bf16 activations; load them with cache=True",
    ]
    assert len(list(folder.iterdir())) == 3 and first.stat().st_mtime_ns == before
    assert "exists: remove it" in gemmill(*call[:5]).err, "without packing there is nothing left to do"


def test_rows_that_do_not_fold_are_named(gemmill, tmp_path: Path) -> None:
    weight = torch.ones(9, 64)
    weight[2:, 32:] = 2.0**-15
    source = save(tmp_path / "in.safetensors", {"a.weight": weight, "b.weight": weight[:3], "c.weight": weight[:2]})
    done = gemmill("convert", source, tmp_path / "out.safetensors", "--to", "mxfp4")
    report = f"{tmp_path}/out.safetensors.conversion.json has all"
    told = [line for line in done.out.splitlines() if "not fold:" in line]
    assert told == [
        "a: 7 of 9 rows do not fold: 2 (spread 15), 3 (spread 15), 4 (spread 15), 5 (spread 15), 6 (spread 15) and 2 more; "
        + report,
        f"b: 1 of 3 rows does not fold: 2 (spread 15); {report}",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "mxfp4", "--rounding", "x"], "scales cannot be rounded by 'x': --rounding is up or ocp"),
        (["--to", "int8", "--rounding", "x"], "scales cannot be rounded by 'x': --rounding is up or ocp"),
        (["--to", "int8", "--pack", "x"], "--pack x: int8 weights take activations int8, got 'x'"),
        (
            ["--to", "bf16", "--pack", "bf16"],
            "--pack bf16: there is no layer of format 'bf16': the formats are channel, int8, int8_asymmetric, block128, block32, group128, nvfp4, mxfp4, mxfp6, mxfp8",
        ),
        (
            ["--to", "nvfp4", "--pack", "nvfp4"],
            "layers.0.up: nvfp4 activations of nvfp4 weights need the input's absmax, from a Calibration: input_absmax is None",
        ),
        (
            ["--to", "nvfp4", "--pack", "nvfp4", "--keep", "layers.0.*", "--requantize"],
            "layers.1.up: nvfp4 activations of nvfp4 weights need the input's absmax, from a Calibration: input_absmax is None",
        ),
        (
            ["--to", "mxfp4", "--from", "fp4"],
            "--from: there is no weight format 'fp4': the formats are channel, int8, int8_asymmetric, block128, block32, group128, nvfp4, mxfp4, mxfp6, mxfp8",
        ),
        (
            ["--to", "mxfp4", "--from", "nvfp4"],
            "{} has no quantised layer, and --from says that they are nvfp4: leave --from out",
        ),
    ],
)
def test_options_that_mean_nothing_leave_nothing(gemmill, options: list[str], sentence: str, tmp_path: Path) -> None:
    source = layers(tmp_path / "in.safetensors", 2)
    done = gemmill("convert", source, tmp_path / "out" / "out.safetensors", *options)
    assert (done.code, done.err.splitlines()[-1]) == (3, f"gemmill: {sentence.format(source)}")
    assert list(tmp_path.iterdir()) == [source]


def test_layers_that_stay_in_a_format_without_such_activations_are_told_first(gemmill, tmp_path: Path) -> None:
    source, between = layers(tmp_path / "in.safetensors", 2), tmp_path / "between.safetensors"
    assert gemmill("convert", source, between, "--to", "int8", "--only", "layers.0.*").code == 0
    options = ("--to", "mxfp4", "--keep", "layers.0.*", "--pack", "bf16")
    done = gemmill("convert", between, tmp_path / "out.safetensors", *options)
    assert (done.code, done.err) == (3, "gemmill: layers.0.up: int8 weights take activations int8, got 'bf16'\n")
    assert not (tmp_path / "out.safetensors").exists()


def test_names_are_printed_as_they_are_and_a_terminal_obeys_none(gemmill, tmp_path: Path) -> None:
    names = ["[/red]", "[bold]x", ":smile:", "up\x1b[2J\x07", "a\ud800"]
    weight = torch.ones(3, 64)
    weight[2:, 32:] = 2.0**-15  # does not fold: then a line tells the name once more
    source = save(tmp_path / "in.safetensors", {f"{name}.weight": weight for name in names})
    done = gemmill("convert", source, tmp_path / "out.safetensors", "--to", "mxfp4")
    assert done.code == 0, done.err
    for name in ("[/red]", "[bold]x", ":smile:", "up\\x1b[2J\\x07", "a\\ud800"):
        assert done.out.count(f"{name} ") == done.out.count(f"{name}: 1 of 3 rows") == 1, name
    assert (done.out + done.err).replace("\n", "").isprintable()
    weight[0, 0] = torch.nan
    save(source, {f"{names[3]}.weight": weight})
    done = gemmill("convert", source, tmp_path / "other.safetensors", "--to", "mxfp4")
    assert done.code == 3 and done.err.startswith("gemmill: up\\x1b[2J\\x07: weight [0, 0] is nan")


@pytest.mark.parametrize(
    ("name", "format"), [("fp8", "channel"), ("fp8_channel", "channel"), ("fp8_block", "block128")]
)
def test_names_of_other_projects_for_fp8(gemmill, tmp_path: Path, name: str, format: str) -> None:
    source = save(
        tmp_path / "in.safetensors", {"up.weight": torch.arange(128 * 128, dtype=torch.float32).view(128, 128)}
    )
    for to in (name, format):
        done = gemmill("convert", str(source), str(tmp_path / f"{to}_.safetensors"), "--to", to)
        assert done.code == 0
        assert done.err == "", "a bar is for terminals"
    made, expected = ((tmp_path / f"{to}_.safetensors").read_bytes() for to in (name, format))
    assert made == expected
