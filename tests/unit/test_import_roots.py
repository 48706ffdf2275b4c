"""Folders that pytest puts on the path: whichever comes first hides a module of the same name in the others."""

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_name_is_importable_from_two_roots() -> None:
    roots = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"][
        "pythonpath"
    ]
    assert len(roots) > 1
    names = Counter(
        path.stem
        for root in roots
        for path in (ROOT / root).iterdir()
        if (path.suffix == ".py" and path.stem != "conftest") or (path / "__init__.py").is_file()
    )
    assert [name for name, count in names.items() if count > 1] == []
