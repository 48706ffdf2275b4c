"""The program that runs SGLang's layers: the packages that are not there, its kinds of layers."""

import importlib
import sys
from pathlib import Path

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
