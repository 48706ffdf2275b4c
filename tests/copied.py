"""A copy of the tree that a test may change, and that a process of its own runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmill.locations import checkout


@dataclass(frozen=True)
class Tree:
    """The sources below one folder."""

    folder: Path

    def files(self, *suffixes: str) -> Iterator[Path]:
        """All files whose names end so."""
        return (path for path in self.folder.rglob("*") if path.name.endswith(suffixes))

    def move(self, old: str, new: str) -> None:
        """Move a file."""
        (self.folder / old).rename(self.folder / new)

    def replace(self, old: str, new: str) -> None:
        """Write other words in all files that have the old ones. There must be one."""
        found = [path for path in self.files(".py", ".jinja", ".h", ".cuh", ".cpp") if old in path.read_text()]
        assert found, old
        for path in found:
            path.write_text(path.read_text().replace(old, new))

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program that imports the package of this tree."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "generator"),
            "GEMMILL_HOME": str(self.folder / "home"),
        }
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def copy_tree(folder: Path) -> Tree:
    """The package with templates and kernels, copied to a new folder."""
    root = checkout()
    assert root is not None  # tests run in one
    for name in ("generator/gemmill", "templates", "kernels"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(root / "pyproject.toml", folder)
    return Tree(folder)
