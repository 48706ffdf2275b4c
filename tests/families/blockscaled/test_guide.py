"""The tables of docs/formats.md against the types."""

import re
from pathlib import Path

import pytest

from gemmill.quantize.folding import exact_shifts
from gemmill.quantize.prepack import FORMATS_OF
from gemmill.vocab.float_type import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16
from gemmill.vocab.format import FORMATS, Format

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (Path(__file__).parents[3] / "docs" / "formats.md").read_text().splitlines()
    if line.startswith("|")
]


def row(first: str, cells: int) -> list[str]:
    """The cells after the first of the one row of this length that begins so."""
    (found,) = [row[1:] for row in ROWS if row[0] == first and len(row) == cells]
    return found


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_formats(format: Format) -> None:
    has_global_scale = "yes" if format.has_global_scale else "no"
    bytes_ = f"{float(format.bytes_per_value)}"
    wanted = [format.code, format.code.bits, format.group, format.scale, has_global_scale, bytes_]
    assert row(format.name, 7) == [str(cell) for cell in wanted]


def spelled(shifts: range) -> str:
    return f"{shifts[0]} to {shifts[-1]}" if shifts else "none"


@pytest.mark.parametrize("code", [E2M1, E3M2, E2M3, E4M3, E5M2], ids=str)
def test_where_values_are_exact(code) -> None:
    assert row(code.name, 4) == [
        f"{spelled(exact_shifts(code, operand, normal=True))} ({spelled(exact_shifts(code, operand))})"
        for operand in (BF16, F16, E4M3)
    ]


@pytest.mark.parametrize("code", [E2M1, E3M2, E2M3, E4M3, E5M2], ids=str)
def test_numbers_of_types(code) -> None:
    numbers = row(code.name, 3)[0]
    if code is E2M1:
        assert [float(number) for number in re.findall(r"[\d.]+", numbers)] == list(code.values[:8])
        return
    largest, exponent = re.fullmatch(r"to (\d+(?:\.\d+)?), from 2\^-(\d+)", numbers).groups()
    assert (float(largest), 2.0 ** -int(exponent)) == (code.maximum, code.smallest)


def test_ops() -> None:
    for op, formats in FORMATS_OF.items():
        spelled_formats = row(f"`{op}`", 4)[0]
        assert spelled_formats == (str(formats[0]) if len(formats) == 1 else "all block-scaled ones")
