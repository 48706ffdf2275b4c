"""benchmarks/draw.py: the committed results, drawn again."""

from pathlib import Path

import pytest

import draw
from harness import plot, quant_results

RESULTS = Path(draw.__file__).parent / "results"


def test_every_committed_comparison_can_be_drawn(tmp_path, monkeypatch, capsys) -> None:
    asked = {}

    def of_gemms(rows, names, title, path) -> bool:
        asked[path.name] = (len(rows), names[0], title)
        return True

    def of_quant(rows, copy_gbps, title, path) -> bool:
        asked[path.name] = (len(rows), copy_gbps > 1000, title)
        return True

    monkeypatch.setattr(plot, "draw", of_gemms)
    monkeypatch.setattr(quant_results, "draw", of_quant)
    paths = sorted(RESULTS.glob("*.json"))
    assert draw.main([*map(str, paths), "--out-dir", str(tmp_path)]) == 0
    assert asked["scaled_mm-comparison-h200-2026-11-21.svg"] == (48, "gemmill", "NVIDIA H200, 2026-11-21")
    assert asked["quant-h200-2026-11-21.svg"] == (560, True, "NVIDIA H200, 2026-11-21")
    sweeps = [path for path in paths if "sweep" in path.name]
    assert len(asked) == len(paths) - len(sweeps)
    assert all(f"{path} has no rows to draw\n" in capsys.readouterr().out for path in sweeps[:1])


def test_without_matplotlib(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(plot, "draw", lambda *_: False)
    path = RESULTS / "scaled_mm-comparison-h200-2026-11-21.json"
    assert draw.main([str(path), "--out-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "drawing needs matplotlib: pip install matplotlib\n"


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_no_drawing_is_committed(kind: str) -> None:
    """Those that a run leaves beside its JSON are ignored by git."""
    ignored = (RESULTS.parents[1] / ".gitignore").read_text().splitlines()
    assert f"/benchmarks/results/*.{kind}" in ignored
