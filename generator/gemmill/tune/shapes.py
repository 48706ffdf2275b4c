"""Problems from files: a table of shapes that a user wrote, or the misses that the runtime recorded.

JSON is a list of objects, JSON lines an object each, CSV has a header. Fields: `m`, `n`, `k`, in JSON each a number or,
for m, a list; and `op` (fp8, int8, int8_azp, fp8_groups, bf16), which may be left out where the caller says which ops are meant.
"""

import csv
import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.tune.problems import Op, Problem

LARGEST = 2**31 - 1
_EXAMPLE = '{"m": [1, 16, 64], "n": 4096, "k": 4096}'


class ShapesError(ValueError):
    """A file of shapes that cannot be used; the text names the row."""


def read_shapes(path: Path, ops: Sequence[Op], m_values: Sequence[int] = ()) -> list[Problem]:
    """The problems of a file, each once, in order; rows without `op` are meant for `ops`, rows without `m` for `m_values`.

    Raises ShapesError, naming the row.
    """
    text = _text(path, "--shapes takes a JSON or CSV file")
    problems: dict[Problem, None] = {}
    for number, row in enumerate(_rows(path, text), start=1):
        for problem in _problems(f"{path}, row {number}", row, ops, m_values):
            problems[problem] = None
    if not problems:
        raise ShapesError(f"{path} has no rows: a row is for example {_EXAMPLE}")
    return list(problems)


def read_misses(path: Path, ops: Sequence[Op], m_values: Sequence[int] = ()) -> tuple[list[Problem], list[str]]:
    """The problems of recorded misses, as of JSON lines, and a sentence for each line that is none: one that a kill cut, say.

    Raises ShapesError where no line is one.
    """
    problems: dict[Problem, None] = {}
    unusable = []
    text = _text(path, "--misses takes what GEMMILL_RECORD_MISSES named", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            problems |= dict.fromkeys(_problems(where, _parsed(line, where), ops, m_values))
        except ShapesError as error:
            unusable.append(str(error))
    if not problems:
        raise ShapesError(unusable[0] if unusable else f"{path} has no lines: no call was recorded that a table lacks")
    return list(problems), unusable


def _text(path: Path, expected: str, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors=errors)
    except OSError as error:
        raise ShapesError(f"{path} cannot be read ({error.strerror}): {expected}") from None
    except UnicodeDecodeError:
        raise ShapesError(f"{path} is not text: {expected}") from None


def _rows(path: Path, text: str) -> Iterator[Any]:
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(path, text)
    elif path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield _parsed(line, f"{path}, line {number}")
    else:
        parsed = _parsed(text, str(path))
        if not isinstance(parsed, list):
            raise ShapesError(f"{path} holds {type(parsed).__name__}, expected a list of rows such as {_EXAMPLE}")
        yield from parsed


def _csv_rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    header = [name.strip().lower() for name in reader.fieldnames or ()]
    if not set(TUNING.near) <= set(header):
        raise ShapesError(
            f"{path} begins with {', '.join(header) or 'nothing'}: expected a header with {', '.join(TUNING.sizes)} and perhaps op"
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


def _problems(where: str, row: Any, ops: Sequence[Op], m_values: Sequence[int]) -> Iterator[Problem]:
    if not isinstance(row, Mapping):
        raise ShapesError(f"{where} is {reprlib.repr(row)}, expected an object such as {_EXAMPLE}")
    asked = {name: _sizes(where, row, name) for name in TUNING.near}
    given = TUNING.bucketed in row or not m_values
    asked[TUNING.bucketed] = _sizes(where, row, TUNING.bucketed) if given else m_values
    own_ops = (_op(where, row["op"]),) if "op" in row else ops
    for op, *sizes in product(own_ops, *asked.values()):
        yield Problem(op=op, **dict(zip(asked, sizes, strict=True)))


def _sizes(where: str, row: Mapping[str, Any], name: str) -> Sequence[int]:
    if name not in row:
        raise ShapesError(f"{where} has no {name!r}: a row is for example {_EXAMPLE}")
    value = row[name]
    sizes = value if isinstance(value, list) and name == TUNING.bucketed else [value]
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST:
            raise ShapesError(f"{where} has {name} = {size!r}, expected a whole number from 1 to {LARGEST}")
    return sizes


def _op(where: str, name: Any) -> Op:
    try:
        return Op(name)
    except ValueError:
        raise ShapesError(f"{where} has op = {name!r}, expected one of {', '.join(Op)}") from None
