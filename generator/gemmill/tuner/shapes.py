"""Workloads from files: a user's table of shapes, or the misses that the runtime recorded.

JSON is a list of objects, JSON lines an object each, CSV has a header. Fields: a family's sizes, in JSON each a number
or, for the bucketed one, a list. `op` is a measured class, which a row may omit where the caller passes the classes.
"""

import csv
import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gemmill.registry import REGISTRY
from gemmill.tuner.workloads import Workload, workload_of

LARGEST = 2**31 - 1


class ShapesError(ValueError):
    """A file of shapes that cannot be used; the text names the row."""


def read_shapes(path: Path, ops: Sequence[str], steps: Sequence[int] | None = ()) -> list[Workload]:
    """The workloads of a file, each once, in order. Rows without `op` are meant for `ops`, rows without the bucketed size
    for `steps` (None: the family's).

    Raises ShapesError, naming the row.
    """
    text = _text(path, "--shapes takes a JSON or CSV file")
    workloads: dict[Workload, None] = {}
    for number, row in enumerate(_rows(path, text, ops), start=1):
        for workload in _workloads(f"{path}, row {number}", row, ops, steps):
            workloads[workload] = None
    if not workloads:
        raise ShapesError(f"{path} has no rows: a row is for example {_example(ops)}")
    return list(workloads)


def workloads_of_rows(rows: Iterable[Any]) -> list[Workload]:
    """The workloads of rows that name their `op`, each once, in order. Raises ShapesError, naming the row."""
    workloads: dict[Workload, None] = {}
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Mapping) and "op" not in row:
            raise ShapesError(f"shape {number} has no op, expected one of {', '.join(REGISTRY.measured)}")
        workloads |= dict.fromkeys(_workloads(f"shape {number}", row, (), ()))
    if not workloads:
        raise ShapesError(f"no shapes: a shape is for example {_example(())}")
    return list(workloads)


def read_misses(path: Path, ops: Sequence[str], steps: Sequence[int] | None = ()) -> tuple[list[Workload], list[str]]:
    """The workloads of recorded misses, and a sentence for each line that is none, such as one that a kill cut.

    Raises ShapesError where no line is one.
    """
    workloads: dict[Workload, None] = {}
    unusable = []
    text = _text(path, "--misses takes the file that GEMMILL_RECORD_MISSES names", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            workloads |= dict.fromkeys(_workloads(where, _parsed(line, where), ops, steps))
        except ShapesError as error:
            unusable.append(str(error))
    if not workloads:
        raise ShapesError(unusable[0] if unusable else f"{path} has no lines: no call was recorded that a table lacks")
    return list(workloads), unusable


def _text(path: Path, expected: str, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors=errors)
    except OSError as error:
        raise ShapesError(f"{path} cannot be read ({error.strerror}): {expected}") from None
    except UnicodeDecodeError:
        raise ShapesError(f"{path} is not text: {expected}") from None


def _rows(path: Path, text: str, ops: Sequence[str]) -> Iterator[Any]:
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(path, text, ops)
    elif path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield _parsed(line, f"{path}, line {number}")
    else:
        parsed = _parsed(text, str(path))
        if not isinstance(parsed, list):
            raise ShapesError(f"{path} holds {type(parsed).__name__}, expected a list of rows such as {_example(ops)}")
        yield from parsed


def _csv_rows(path: Path, text: str, ops: Sequence[str]) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    header = [name.strip().lower() for name in reader.fieldnames or ()]
    if not any(set(tuning.near) <= set(header) for _, tuning, _, _ in REGISTRY.measured.values()):
        sizes = REGISTRY.measured[_first(ops)][1].sizes
        raise ShapesError(
            f"{path} begins with {', '.join(header) or 'nothing'}: expected a header with {', '.join(sizes)} and perhaps op"
        )
    reader.fieldnames = header
    for row in reader:
        yield {key: _number(value) for key, value in row.items() if key is not None and value not in (None, "")}


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.strip().isdecimal() else text


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShapesError(f"{where} is not JSON: {error}") from None


def _first(ops: Sequence[str]) -> str:
    return ops[0] if ops else next(iter(REGISTRY.measured))


def _example(ops: Sequence[str]) -> str:
    return json.dumps(REGISTRY.measured[_first(ops)][2].example)


def _workloads(where: str, row: Any, ops: Sequence[str], steps: Sequence[int] | None) -> Iterator[Workload]:
    if not isinstance(row, Mapping):
        raise ShapesError(f"{where} is {reprlib.repr(row)}, expected an object such as {_example(ops)}")
    for op in (row["op"],) if "op" in row else ops:
        if op not in tuple(REGISTRY.measured):
            raise ShapesError(f"{where} has op = {op!r}, expected one of {', '.join(REGISTRY.measured)}")
        _, tuning, sweep, _ = REGISTRY.measured[op]
        asked = {name: _sizes(where, row, name, op) for name in tuning.near}
        measured_at = sweep.steps if steps is None else steps
        given = tuning.bucketed in row or not measured_at
        asked[tuning.bucketed] = _sizes(where, row, tuning.bucketed, op) if given else measured_at
        for sizes in product(*asked.values()):
            yield workload_of(op, dict(zip(asked, sizes, strict=True)))


def _sizes(where: str, row: Mapping[str, Any], name: str, op: str) -> Sequence[int]:
    if name not in row:
        raise ShapesError(f"{where} has no {name!r}: a row is for example {_example((op,))}")
    value = row[name]
    sizes = value if isinstance(value, list) and name == REGISTRY.measured[op][1].bucketed else [value]
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST:
            raise ShapesError(f"{where} has {name} = {size!r}, expected a whole number from 1 to {LARGEST}")
    return sizes
