"""benchmarks/draw.py: the committed results, drawn again."""

from pathlib import Path

import pytest

import draw
from harness import plot
from harness.results import shape_of

RESULTS = Path(draw.__file__).parent / "results"


def test_every_committed_comparison_can_be_drawn(tmp_path, monkeypatch, capsys) -> None:
    asked = {}

    def noted(rows, names, title, path) -> bool:
        asked[path.name] = (len(rows), names[0], title)
        assert all(row["op"] and len(shape_of(row)) in (1, 2, 3, 4) for row in rows)
        return True

    monkeypatch.setattr(plot, "draw", noted)
    paths = sorted(RESULTS.glob("*.json"))
    assert draw.main([*map(str, paths), "--out-dir", str(tmp_path)]) == 0
    assert asked["scaled_mm-comparison-h200-2026-11-21.svg"] == (48, "gemmill", "NVIDIA H200, 2026-11-21")
    assert asked["quant-h200-2026-11-21.svg"] == (560, "gemmill", "NVIDIA H200, 2026-11-21")
    others = ("host-time", "layer-time", "offload", "conversion", "weight-quality")
    undrawn = [path for path in paths if "sweep" in path.name or path.name.startswith(others)]
    assert len(asked) == len(paths) - len(undrawn)
    assert all(f"{path} has no rows to draw\n" in capsys.readouterr().out for path in undrawn[:1])


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
