"""The ten lines of README.md run."""

import re
from pathlib import Path


def test_the_first_program_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[3] / "README.md").read_text(), re.DOTALL)
    made: dict[str, object] = {}
    exec(compile(program.replace("8192", "128").replace("4096", "256"), "README.md", "exec"), made)
    assert made["out"].shape == (16, 128)
