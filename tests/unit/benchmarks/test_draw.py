"""benchmarks/draw.py: pictures of the committed results."""

import json
import lzma
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import draw
from gemmill.typed_json import JsonError
from harness import plot
from harness.stored import read_result

RESULTS = Path(draw.__file__).parent / "results"
SVG = "{http://www.w3.org/2000/svg}"


def dots(text: str) -> list[ElementTree.Element]:
    """Those of shapes, not of the legend."""
    return [dot for dot in ElementTree.fromstring(text).iter(f"{SVG}circle") if dot.find(f"{SVG}title") is not None]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_each_comparison_is_drawn_whole(path: Path) -> None:
    record = read_result(path)
    compared = [row for row in record.get("rows") or () if row.get("ratio") is not None and "contenders" in row]
    text = plot.drawn(record)
    assert (text is None) == (not compared)
    if text is None:
        return
    assert len(dots(text)) == len(compared)
    width, height = map(float, ElementTree.fromstring(text).get("viewBox").split()[2:])
    assert width <= 800 and all(0 <= float(dot.get("cx")) <= width for dot in dots(text)), "readable on a page"
    assert max(float(dot.get("cy")) for dot in dots(text)) < height and record["date"][:10] in text


def test_a_dot_tells_its_shape_and_classes_lie_beside_one_another() -> None:
    rows = [
        {"op": op, "sizes": ["m", "n", "k"], "m": 16, "n": 8, "k": 4, "ratio": 2.0, "best_peer": "x", "contenders": {}}
        for op in ("int8", "own")
    ]
    text = plot.drawn({"rows": rows, "environment": {"gpu": "G"}, "date": "2026-01-02T", "commit": "0123456789"})
    first, second = dots(text)
    assert first.find(f"{SVG}title").text == "INT8: 16 x 8 x 4, 2.00 of x"
    assert float(second.get("cx")) - float(first.get("cx")) == 8 and first.get("cy") == second.get("cy")
    assert "G, 2026-01-02, commit 0123456" in text


def test_shares_of_the_roofline() -> None:
    """As much of the ceiling that is nearer: bandwidth of few rows, tensor cores of many; 16 bits have half the rate."""
    row = {"op": "fp8", "sizes": ["m", "n", "k"], "m": 16, "n": 8, "k": 4, "gbps": 2105.0, "tflops": 197.9}
    rows = [row, row | {"m": 4096, "gbps": 421.0, "tflops": 1583.2}, row | {"op": "bf16", "m": 64, "tflops": 791.6}]
    record = {"rows": rows, "environment": {"gpu": "NVIDIA H200"}, "date": "2026-01-02T", "commit": "0123456789"}
    told = [dot.find(f"{SVG}title").text for dot in dots(plot.rooflines(record))]
    assert told == [
        "FP8, per token and channel: 16 x 8 x 4, 0.50 of the roofline",
        "FP8, per token and channel: 4096 x 8 x 4, 0.80 of the roofline",
        "bf16: 64 x 8 x 4, 0.80 of the roofline",
    ]
    assert plot.rooflines(record | {"environment": {"gpu": "another"}}) is None


def test_what_compares_nothing_is_said(tmp_path, capsys) -> None:
    paths = [RESULTS / "offload-h200-2026-11-22.json", RESULTS / "moe-drawn-9802-h200-2026-11-23.json.xz"]
    assert draw.main([*map(str, paths), "--out-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{paths[0]} compares nothing with a peer",
        f"written: {tmp_path}/moe-drawn-9802-h200-2026-11-23.svg",
    ]
    assert draw.main([str(paths[1]), "--out", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text() == plot.drawn(json.loads(lzma.decompress(paths[1].read_bytes())))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"date": None}, ", date: expected `str`, got `null`"),
        ({"rows": [{"ratio": "fast"}]}, ", rows[0].ratio: expected `float | null`, got `str`"),
        (
            {"rows": [{"contenders": {"x": {"median_us": 0}}}]},
            ", rows[0].contenders[...].median_us: expected `float` > 0.0",
        ),
        ({"environment": {"gpu": "G"}}, ", environment: object missing required field `torch`"),
    ],
)
def test_a_result_with_a_wrong_field_is_refused(tmp_path, changes, sentence) -> None:
    path = tmp_path / "x.json"
    path.write_text(
        json.dumps(
            {"date": "2026-01-02", "commit": "1", "environment": {"gpu": "G", "torch": "2"}, "rows": []} | changes
        )
    )
    with pytest.raises(JsonError) as caught:
        draw.main([str(path), "--out-dir", str(tmp_path)])
    assert str(caught.value) == f"{path}{sentence}; name a result that benchmarks/run.py wrote"
    assert not list(tmp_path.glob("*.svg"))


def test_nothing_draws_but_the_reports_charts() -> None:
    root = RESULTS.parents[1]
    for folder in ("generator", "benchmarks", "tools"):
        for path in (root / folder).rglob("*.py"):
            assert not re.search(r"^\s*(import|from) (matplotlib|plotly|altair|bokeh)", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_no_drawing_is_committed(kind: str) -> None:
    """Git ignores those that a run leaves next to its JSON."""
    ignored = (RESULTS.parents[1] / ".gitignore").read_text().splitlines()
    assert f"/benchmarks/results/*.{kind}" in ignored


def test_a_packed_result_is_read_and_a_broken_one_named(tmp_path) -> None:
    whole, cut = tmp_path / "whole.json.xz", tmp_path / "cut.json.xz"
    whole.write_bytes(lzma.compress(b'{"commit": "abc"}'))
    cut.write_bytes(whole.read_bytes()[:-8])
    assert read_result(whole) == {"commit": "abc"}
    with pytest.raises(
        JsonError, match=r"cut\.json\.xz cannot be read \(.*\): name a result that benchmarks/run\.py wrote"
    ):
        read_result(cut)
