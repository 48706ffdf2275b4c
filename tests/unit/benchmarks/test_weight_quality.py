"""The program of the page on pruning, at a small size; the page's figures are those of its results."""

import json
import lzma
import re
from pathlib import Path

import weight_quality

ROOT = Path(__file__).parents[3]
KINDS = ("weights", "normal", "uneven")


def test_all_formats_are_measured_on_all_weights() -> None:
    rows = weight_quality.measured(8, 256)
    found = {(row["distribution"], row["format"]): row for row in rows}
    assert len(found) == len(rows) == 3 * 14
    for name in weight_quality.WEIGHTS:
        errors = {format: found[name, format]["weights"] for format in ("mxfp8", "nvfp4", "pruned", "sparse nvfp4")}
        assert list(errors) == sorted(errors, key=errors.__getitem__)
        assert found[name, "sparse nvfp4, fitted"]["weights"] <= errors["sparse nvfp4"]


def test_the_page_has_the_figures_of_the_results() -> None:
    page = (ROOT / "docs" / "sparse_mm.md").read_text()
    named = re.search(r"\(\.\./(benchmarks/results/weight-quality-[\w-]+\.json\.xz)\)", page)
    assert named is not None
    results = json.loads(lzma.decompress((ROOT / named[1]).read_bytes()))
    assert f"commit {results['commit'][:10]} |" in page
    by_format: dict[str, list[str]] = {}
    for row in results["rows"]:
        by_format.setdefault(row["format"], []).extend(f"{row[kind]:.2e}" for kind in KINDS)
    for format, figures in by_format.items():
        assert f"| {format} | {' | '.join(figures)} |" in page, format
