"""README and addresses of gemmill's own wheel and source distribution: a metadata hook of hatchling.

Both are made from `[tool.gemmill]` of pyproject.toml, as `gemmill wheel` makes them for its wheels.
"""

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class LinksHook(MetadataHookInterface):
    """Gives `readme` and `urls`, which are dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("readme", root / "generator" / "gemmill" / "wheel" / "readme.py")
        assert spec is not None and spec.loader is not None  # it is a Python file
        readme = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(readme)
        with (root / "pyproject.toml").open("rb") as file:
            repository = tomllib.load(file)["tool"]["gemmill"]["repository"]
        text = readme.absolute((root / "README.md").read_text(encoding="utf-8"), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = readme.urls(repository)
