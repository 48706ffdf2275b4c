"""Where gemmill's own files lie: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent


def checkout() -> Path | None:
    """The checkout that this package lies in; None where it was installed from a wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "kernels").is_dir() else None


def _own(folder: str) -> Path:
    inside = _PACKAGE / "_data" / folder
    return inside if inside.is_dir() else _CHECKOUT / folder


def templates_dir() -> Path:
    """The folder of jinja templates."""
    return _own("templates")


def kernels_include_dir() -> Path:
    """The folder to give nvcc with `-I` for `gemmill/*.cuh`."""
    return _own("kernels") / "include"


def kernels_dir() -> Path:
    """The folder of hand-written kernels."""
    return _own("kernels")


def runtime_tables_dir() -> Path:
    """The folder of shipped tuned tables."""
    return _PACKAGE / "runtime" / "tables"
