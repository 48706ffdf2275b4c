"""benchmarks/model_layers.py: DeepSeek V4.1's layers without a GPU."""

import json
from functools import partial

import pytest
import torch

import model_layers
from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.tuner.workloads import workload_of
from harness.contenders import WrongResult
from harness.timers import DryTimer


def test_a_dry_run_times_every_side_and_sums_dense_layers(tmp_path, capsys) -> None:
    assert model_layers.main(["--dry-run", "--no-experts", "--rows", "1,3", "--out-dir", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "model-layers.json").read_text())
    assert record["dry_run"] and [(row["layer"], row["rows"]) for row in record["rows"]] == [
        *(("1280 x 5120", m) for m in (1, 3)),
    ]
    assert all(not row["failures"] for row in record["rows"])
    dense = record["rows"][0]["sides"]
    assert list(dense) == ["gemmill", "gemm", "quantise", *model_layers.FOLDED, "bf16"]
    assert record["sums"]["1"] == {name: side["median_us"] for name, side in dense.items()}
    assert "dense layers, 3 rows: gemmill " in capsys.readouterr().out


def test_a_wrong_layer_is_not_timed() -> None:
    """Its result is of another product, or not written at all."""
    maker = GemmMaker(torch.device("cpu"), 4096)
    layer = model_layers.layer_of(maker, workload_of("fp8_groups_32", {"m": 5, "n": 64, "k": 128}))
    for call in (lambda x, i: x.coded(), lambda x, i: partial(torch.mm, x.x, x.plain[i - 1].t())):
        with pytest.raises(WrongResult, match="wrong result of fp8_groups_32 5 x 64 x 128: its error is "):
            model_layers.LayerContender(name="wrong", call=call).prepare(layer, DryTimer(), 1)
    right = model_layers.LayerContender(name="right", call=lambda x, i: partial(torch.mm, x.x, x.plain[i].t()))
    right.prepare(layer, DryTimer(), 1).close()


def test_folded_products_have_scales_of_their_groups() -> None:
    layer = model_layers.layer_of(
        GemmMaker(torch.device("cpu"), 4096), workload_of("fp8_groups_32", {"m": 5, "n": 256, "k": 256})
    )
    layer.coded()()
    expected = (layer.codes.double() @ layer.product.weights[0].double()).bfloat16()
    for fold, columns in model_layers.FOLDED.items():
        assert layer.folded_weights[fold].shape == (2, 256 // columns)
        layer.product.out.fill_(torch.nan)
        layer.multiplied_folded(0, fold)()
        torch.testing.assert_close(layer.product.out, expected)


def test_a_sum_has_sides_of_all_layers_alone() -> None:
    rows = [
        {"layer": layer, "rows": 1, "sides": {name: {"median_us": us} for name in names}}
        for layer, names, us in (
            ("a", ("gemmill", "bf16"), 1.5),
            ("b", ("gemmill",), 2.0),
            ("experts x", ("gemmill",), 9.0),
        )
    ]
    assert model_layers.sums_of(rows) == {"1": {"gemmill": 3.5}}


def test_without_a_gpu_nothing_is_timed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", bool)
    assert model_layers.main(["--rows", "1"]) == 2
    assert capsys.readouterr().err == "no GPU: nothing can be timed here; --dry-run runs the program without one\n"
