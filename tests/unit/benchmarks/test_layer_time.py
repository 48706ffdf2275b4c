"""The program that measures the time that a layer adds to its ops, on the CPU."""

import json

import pytest
import torch

import layer_time as program
from gemmill.nn.recipes import RECIPES


def test_what_a_layer_adds_is_of_the_same_round():
    found = program.figures({"ops": [5.0, 9.0, 5.0], "layer": [7.0, 12.0, 8.0], "module": [1.0, 1.0, 2.0]})
    assert found["adds_us"] == 3.0
    assert found["median_us"] == {"ops": 5.0, "layer": 8.0, "module": 1.0}


@pytest.mark.parametrize(("format", "activations", "count"), [("channel", "e4m3", 2), ("nvfp4", "bf16", 1)])
def test_ops_are_those_of_the_layer(format, activations, count, monkeypatch):
    recorded = []
    monkeypatch.setattr(program, "_replayed", lambda calls: recorded.extend(calls) or (lambda: None))
    program.sides_of(format, activations, "cpu")
    assert len(recorded) == count and all(func.namespace == "gemmill" for func, _ in recorded)
    assert any(isinstance(given, torch.Tensor) and given.shape == (program.ROWS, program.K) for given in recorded[0][1])


def test_the_record_has_every_kind(tmp_path, capsys):
    arguments = ["--cpu", "--rounds", "1", "--calls", "1", "--commit", "abc", "--out-dir", str(tmp_path)]
    assert program.main(arguments) == 0
    record = json.loads((tmp_path / "layer-time.json").read_text())
    assert set(record["kinds"]) == {f"{format} x {activations}" for format, activations in RECIPES}
    assert record["commit"] == "abc" and record["left_out"] == {}
    assert "channel x e4m3: ops " in capsys.readouterr().out
