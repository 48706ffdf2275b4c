"""The outcome of a build, and its messages."""

import json
from pathlib import Path

from gemmill.build.options import BuildResult


class Recorder:
    """An observer that writes messages down."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def started(self, total_weight: float) -> None:
        self.events.append(("started", total_weight))

    def unit_done(self, label: str, weight: float, ok: bool) -> None:
        self.events.append(("unit_done", label, weight, ok))

    def linking(self) -> None:
        self.events.append(("linking",))

    def finished(self, result: BuildResult) -> None:
        self.events.append(("finished", result))


def builds(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "builds").iterdir()) if (home / "builds").is_dir() else []


def left_over(home: Path) -> list[Path]:
    """Files that a finished build must not leave."""
    return [*home.glob("work/*"), *home.glob("builds/.*"), *home.glob("cache/*/.*"), *home.glob("**/.*")]


def object_of(home: Path, variant: str) -> Path:
    for path in home.glob("cache/objects/*/entry.json"):
        if variant in json.loads(path.read_text())["members"].values():
            return path.with_name("object.o")
    raise AssertionError(f"no object of {variant}")
