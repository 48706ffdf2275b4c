"""`gemmill doctor`: whether this machine and its builds fit."""

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import ExitCode
from gemmill.cli.output import console, print_json, table


def doctor(as_json: o.JsonOption = False) -> None:
    """Report whether machine and build fit.

    Looks at Python, torch, CUDA, GPUs, driver, toolchain, and the build that would be loaded. Reads the extension's symbol tables and machine code without loading it. Exits 1 if there is a problem.

    Examples:

        gemmill doctor

        gemmill doctor --json
    """
    from gemmill.doctor import examine
    from gemmill.doctor.finding import State

    findings = examine()
    problems = [finding for finding in findings if finding.state is State.PROBLEM]
    if as_json:
        print_json({"ok": not problems, "findings": findings})
    else:
        rows = [(finding.state, finding.subject, finding.found, finding.advice) for finding in findings]
        console().print(table("gemmill doctor", ["", "subject", "found", "what to do"], rows))
    if problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)
