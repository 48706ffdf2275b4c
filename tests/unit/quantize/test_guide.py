"""docs/weights.md: its programs run, and its table matches the results."""

import re
from pathlib import Path

import pytest
import torch

from gemmill.quantize import WEIGHT_FORMATS, quantize_weight

PAGE = (Path(__file__).parents[3] / "docs" / "weights.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_run(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/weights.md", "exec"), {})


def test_formats_and_their_sizes() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert tuple(rows) == WEIGHT_FORMATS
    for format, size in rows.items():
        made = quantize_weight(torch.zeros(2048, 2048), format)
        rowwise = {"channel": 4, "int8": 4, "int8_asymmetric": 8}.get(format, 0) * 2048 + 4 * (format == "nvfp4")
        assert round((made.nbytes - rowwise) / 2048**2, 4) == round(float(size), 4)
