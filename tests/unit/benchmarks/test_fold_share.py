"""The program that measures which share of a weight folds, at a small size."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fold_share


def test_it_measures_drawn_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shares.json"
    given = ["--rows", "128", "--columns", "256", "--weights", "Gaussian", "heavy-tailed", "--out", str(out)]
    assert fold_share.main(given) == 0
    rows = json.loads(out.read_text())["rows"]
    assert set(rows) == {"Gaussian", "Gaussian, OCP scales", "heavy-tailed", "heavy-tailed, OCP scales"}
    for row in rows.values():
        for fold in ("block128", "group128"):
            assert row[fold]["whole"] == (row[fold]["share"] == 1) == (row[fold]["changed"] == 0)
        assert row["group128"]["share"] >= row["block128"]["share"]
    assert rows["heavy-tailed"]["block128"]["share"] < 1
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


def test_it_measures_the_layers_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.safetensors"
    weight = torch.full((64, 256), 8.0).to(torch.float8_e4m3fn)
    save_file({"a.weight": weight, "a.weight_scale_inv": torch.ones(2, 8)}, path)
    assert fold_share.main(["--checkpoint", str(path)]) == 0
    assert "| a | 1.00000, 0.0e+00, 0.0e+00 | 1.00000, 0.0e+00, 0.0e+00 |" in capsys.readouterr().out


def test_odd_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fold_share.main(["--rows", "33"])
    assert "--rows 33 and --columns 5120: expected multiples of 32" in capsys.readouterr().err
