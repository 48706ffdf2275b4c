"""Places of gemmill's own files: next to the package in a checkout, inside it in a wheel."""

import importlib.util
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent


def checkout() -> Path | None:
    """The checkout that this package lies in; None where it was installed from a wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "kernels").is_dir() else None


def own_file(name: str) -> Path:
    """A file or folder of the project next to the package, as its licence."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.exists() else _CHECKOUT / name


def installed(package: str) -> list[Path]:
    """The folders of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def package_dir() -> Path:
    """The folder of this package."""
    return _PACKAGE


def templates_dir() -> Path:
    """The folder of jinja templates."""
    return own_file("templates")


def kernels_dir() -> Path:
    """The folder of hand-written kernels, one for each family: the argument of a compiler's `-I`."""
    return own_file("kernels")


def runtime_tables_dir() -> Path:
    """The folder of shipped tuned tables."""
    return _PACKAGE / "runtime" / "tables"
