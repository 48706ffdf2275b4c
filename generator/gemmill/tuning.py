"""`gemmill.tune`: the command of the same name, from Python."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gemmill.runtime.table_file import TableRow


def tune(
    shapes: Iterable[Mapping[str, Any]],
    *,
    build: str | Path | None = None,
    table: Path | None = None,
    candidates: int = 60,
) -> list[TableRow]:
    """Time variants on shapes, and choose by the results from now on, in this process and in later ones.

    `shapes` are rows as `gemmill tune --shapes` reads. They have the sizes of a class of calls by name, the bucketed
    one a number or a list, and `op`, the class. One is `{"op": "fp8", "m": [16, 700], "n": 3072, "k": 5120}`. `build`
    is an id or a folder, the active build by default. The rows go into `table`, by default this device's in the home.
    It tries at most `candidates` variants on a shape, about a second each shape. They run in a process of their own,
    which may crash: during a server's warm-up, while nothing else uses the GPU. Returns the rows that the tables have
    for the shapes.

    Raises ValueError, which names the row, for malformed shapes; RuntimeError where nothing can be measured;
    ImportError where a package is missing that measuring needs.
    """
    try:
        beside = import_module("gemmill.tuner.beside")  # the runtime imports nothing of it
    except ModuleNotFoundError as error:
        raise ImportError(
            f"gemmill.tune measures variants, and there is no {error.name} here: `pip install 'gemmill[tune]'`"
        ) from None
    rows: list[TableRow] = beside.tune_shapes(shapes, build, table, candidates)
    return rows
