"""The program that times caches of long vectors, of latents and of values of fewer elements, on a CPU: its checks of outputs."""

import pytest
import torch

import cache_dims


def test_small_sizes_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_dims.main(["--cpu"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "256 2 64 4 2 right",
        "512 2 64 4 2 right",
        "192 and 128 2 64 4 2 right",
        "latents 2 64 16 right",
        "latents, e4m3 2 64 16 right",
    ]
    assert cache_dims.main(["--cpu", "--only", "512"]) == 0 and capsys.readouterr().out == "512 2 64 4 2 right\n"


def test_a_wrong_output_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_dims, "exact", lambda q, keys, values: torch.ones(q.shape[0], values.shape[2]))
    assert cache_dims.main(["--cpu"]) == 1
    assert capsys.readouterr().out.count("wrong: the output's relative error is ") == 5
