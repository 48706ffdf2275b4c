"""docs/layers.md: its programs run, and its table has the output of the first."""

import re
from pathlib import Path

import pytest
import torch

from gemmill.nn import QuantLinear
from gemmill.nn.recipes import RECIPES

PAGE = (Path(__file__).parents[3] / "docs" / "layers.md").read_text()
BLOCK, TRANSFORMERS, STORED, LOADED, OFFLOAD = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(program: str) -> dict[str, object]:
    made: dict[str, object] = {"__name__": "docs"}
    exec(compile(program, "docs/layers.md", "exec"), made)
    return made


def test_the_transformer_block() -> None:
    made = run(BLOCK)
    rows = re.findall(r"^\| (\w+ x \w+) \| ([\d.]+) \| (\d+) % \|$", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == list(made["errors"])
    for kind, error, saved in rows:
        # Another torch adds in another order: a code or two may move.
        assert made["errors"][kind] == pytest.approx(float(error), rel=0.05)
        assert round(100 * made["saved"][kind]) == int(saved)


def test_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors.torch")
    monkeypatch.chdir(tmp_path)
    made = run(LOADED)
    assert [error.name for error in made["made"].layers] in (["0", "2"], ["2", "0"])
    assert all(type(made["model"][place]) is QuantLinear for place in (0, 2))
    assert len(list((tmp_path / ".gemmill-packed").iterdir())) == 2


def test_weights_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run(OFFLOAD)


def test_every_recipe_is_in_the_table() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for format, activations in RECIPES:
        (row,) = [row for row in rows if f"`{format}`" in row.split("|")[1]]
        assert re.search(rf"\b{activations}\b", row.split("|")[2]), (format, activations)
