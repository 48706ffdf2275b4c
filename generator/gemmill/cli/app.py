"""The command as a whole, and the handling of its errors."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gemmill import __version__
from gemmill.cli.exits import ExitCode, code_of, report
from gemmill.cli.verbs import Verbs

app = typer.Typer(name="gemmill", cls=Verbs, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gemmill {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Generate, build and inspect quantised GEMM kernels for NVIDIA GPUs.

    Exit codes: 0 right, 1 a check failed, 2 usage, 3 something needed is missing, 4 build failed, 5 built incompletely.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with a code of ExitCode."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = app(args=[text for text in given if text != "--debug"], prog_name="gemmill", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has gone: a message has no reader, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.CHECK_FAILED
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except Exception as error:
        known = code_of(error)
        if debug or known is None:
            raise
        report(error)
        code = known
    sys.exit(int(code or 0))
