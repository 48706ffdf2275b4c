"""`gemmill convert`: what it prints, and its exit codes."""

from pathlib import Path

import torch

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
        "gemmill: layers.0.up: mxfp4 weights take activations bf16 or e4m3 or mxfp4 or mxfp8, got 'int8'"
    )
