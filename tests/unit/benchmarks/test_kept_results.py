"""benchmarks/results has the files that pages name, and stays small: history has the rest."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
MOST_BYTES = 2_000_000


def _kept() -> list[Path]:
    """Pictures and reports in the same folder are not committed."""
    return sorted(path for path in RESULTS.iterdir() if path.suffix in (".json", ".xz"))


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in _kept()) <= MOST_BYTES, (
        "git rm results that newer ones replace, and name their commit"
    )


def test_every_result_is_named_by_a_page() -> None:
    pages = "".join(path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    assert [path.name for path in _kept() if f"benchmarks/results/{path.name})" not in pages] == [], (
        "link a result where its figures stand, or leave it to history"
    )
