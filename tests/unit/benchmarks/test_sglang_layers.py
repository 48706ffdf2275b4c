"""The program that runs SGLang's layers: the packages that are not there, its kinds of layers."""

import importlib
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

import sglang_layers as program


def test_a_package_that_is_missing_or_does_not_load_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "breaks").mkdir()
    (tmp_path / "breaks" / "__init__.py").write_text("raise ImportError('undefined symbol')", encoding="utf-8")
    (tmp_path / "works.py").write_text("answer = 42", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(program, "OPTIONAL", ("breaks", "works", "nowhere_at_all"))
    finder = program.Missing()
    assert finder.lacking == {"breaks", "nowhere_at_all"}
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in ("breaks", "breaks.part", "works", "nowhere_at_all"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module("breaks.part").anything is not None
    assert importlib.import_module("works").answer == 42
    assert finder.made == ["breaks", "breaks.part"]
    for name in ("breaks", "breaks.part", "works"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_weights_are_decoded_by_rows_blocks_and_pairs() -> None:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.full((4, 8), 2, dtype=torch.int8), requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    assert program.decoded(layer, "int8")[:, 0].tolist() == [2, 4, 6, 8]
    layer.weight_scale_inv = torch.nn.Parameter(torch.tensor([[1.0, 10.0], [2.0, 20.0]]))
    assert program.decoded(layer, "fp8_block")[:, [0, 7]].tolist() == [[2, 20], [2, 20], [4, 40], [4, 40]]


def test_an_unknown_kind_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        program.parse(["--kinds", "fp8,fp3"])
    assert "no kind 'fp3': expected fp8, fp8_block, fp8_block_32, int8, nvfp4" in capsys.readouterr().err


def test_kinds_that_sglang_compiles_come_last() -> None:
    assert program.parse(["--kinds", "nvfp4,fp8,int8"]).kinds == ["fp8", "int8", "nvfp4"]
    assert program.parse(["--kinds", "nvfp4,fp8", "--wait", "0"]).kinds == ["nvfp4", "fp8"]


def test_results_of_one_kind_alone_are_of_one_kind(capsys) -> None:
    with pytest.raises(SystemExit):
        program.parse(["--alone", "x.pt"])
    assert "--alone is for one kind, and --kinds names 5: name one" in capsys.readouterr().err


def test_a_result_is_wrong_where_it_is_far_from_the_product_or_fails_with_gemmill_alone() -> None:
    x = program.inputs(1, torch.device("cpu"))
    weights = torch.randn((2, program.K), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = {1: (x.double() @ weights.t()).float()}, weights, ""
    far = {1: 1.1 * right[0][1]}, weights, ""
    failed = {}, torch.empty(0), "RuntimeError: no"
    cpu = torch.device("cpu")
    near = {1: 1.01 * right[0][1]}, weights, ""
    row = program.compared("fp8", cpu, right, near)
    assert not row["wrong"]
    assert row["rows"][1]["off"] < 1e-6 < row["rows"][1]["off_without"] == pytest.approx(0.01, abs=1e-5)
    for without in (far, ({1: float("inf") * right[0][1]}, weights, "")):  # no figure, and nothing that JSON lacks
        row = program.compared("fp8", cpu, right, without)
        assert not row["wrong"] and set(row["rows"][1]) == {"off"}
        assert row["error_without"] == "its results of 1 rows are not the layer's"
    assert program.compared("fp8", cpu, far, right)["wrong"]
    assert program.compared("fp8", cpu, failed, right)["wrong"]
    assert not program.compared("fp8", cpu, failed, failed)["wrong"]
    assert program.compared("fp8", cpu, right, None)["error_without"] == "it was not waited for"


def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> program.Alone:
    """Alone with another program in its place."""
    script = tmp_path / "program.py"
    script.write_text(f"import sys, time\n{body}\n", encoding="utf-8")
    monkeypatch.setattr(program, "__file__", str(script))
    return program.Alone("nvfp4", program.parse(["--rows", "1"]), tmp_path)


def test_results_of_the_process_that_compiles_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = "import torch\ntorch.save(({1: torch.ones(1, 2)}, torch.zeros(2, 3), ''), sys.argv[-1])"
    found, weights, error = _alone(monkeypatch, tmp_path, body).outputs(60)
    assert found[1].tolist() == [[1, 1]]
    assert (weights.shape, error) == ((2, 3), "")


def test_a_process_that_compiles_too_long_or_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = _alone(monkeypatch, tmp_path, "time.sleep(600)")
    assert slow.outputs(0.1)[2] == "it was ended 0 s after the other kinds"
    slow.end()
    ended = _alone(monkeypatch, tmp_path, "sys.exit('nvcc is not there')")
    assert ended.outputs(60)[2] == "its process ended without results: nvcc is not there"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (MagicMock(), "TypeError: its kernel is in a package that this machine lacks"),
        (torch.full((2, 3), torch.nan), "ValueError: results of 2 rows are not finite"),
    ],
)
def test_results_that_are_none_are_errors(monkeypatch: pytest.MonkeyPatch, result: object, error: str) -> None:
    layer = MagicMock(return_value=(result, None))
    monkeypatch.setattr(program, "made_layer", lambda kind, device: layer)
    monkeypatch.setattr(program, "decoded", lambda layer, kind: torch.empty(0))
    found, _, said = program.outputs("fp8", [2], torch.device("cpu"))
    assert (found, said) == ({}, error)
