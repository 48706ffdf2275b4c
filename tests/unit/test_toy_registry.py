"""The tests of every family hold for the toy too: they know its folder alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
GENERIC = (
    "unit/test_registry.py",
    "unit/test_names.py",
    "unit/test_filters.py",
    "unit/test_selections.py",
    "unit/runtime/test_autograd.py",
    "unit/runtime/test_fakes.py",
)
OF_ITS_OPS = "toy or not runtime"
"""Of tests over one op after another, those of the toy's; the rest are about all families together."""


def test_generic_tests_hold_for_the_toy() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "toy.registered", "-k", OF_ITS_OPS, "-rA", *GENERIC],
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": f"{TESTS.parent / 'generator'}{os.pathsep}{TESTS}"},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    of_toys = set(re.findall(r"^PASSED (\S+)\[toy", done.stdout, re.MULTILINE))
    assert {name.split("::")[0].removeprefix("tests/") for name in of_toys} >= {GENERIC[0], *GENERIC[-2:]}
