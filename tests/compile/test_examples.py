"""Examples of --help that need an extension, as they stand there, with the smoke build; its reproducers: test_export.py."""

import re
import shlex

import pytest
import torch
import typer

from gemmill import settings
from gemmill.build.options import BuildResult
from gemmill.cli.app import app
from making import gemmill

__all__ = ["gemmill"]
COMMANDS = typer.main.get_command(app).commands
EXAMPLES = [
    line.strip()
    for verb in ("explain", "fuzz", "show", "verify")
    for line in re.findall(r"^ *gemmill .*$", COMMANDS[verb].help.split("Examples:")[1], re.MULTILINE)
    if verb in ("explain", "fuzz") or "--sass" in line or "--quick" in line
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_it_runs(gemmill, smoke: BuildResult, monkeypatch, line: str) -> None:
    monkeypatch.setenv("GEMMILL_HOME", str(settings.home()))
    monkeypatch.setenv("GEMMILL_BUILD", smoke.manifest.build_id)
    command, *filtered = line.split(" | grep ")
    outcome = gemmill(*shlex.split(command)[1:])
    if "--gpu" in line and not torch.cuda.is_available():
        assert outcome.code == 3 and outcome.err.startswith("gemmill: --gpu runs kernels and torch finds no GPU: ")
        return
    assert outcome.code == 0 and outcome.out, outcome.err
    for word in filtered:
        assert word in outcome.out
