"""The command's verbs, and what happens to their errors."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gemmill import __version__
from gemmill.cli.audit import audit
from gemmill.cli.build import build
from gemmill.cli.builds import builds
from gemmill.cli.cache import cache
from gemmill.cli.convert import convert
from gemmill.cli.doctor import doctor
from gemmill.cli.exits import ExitCode, code_of, report
from gemmill.cli.explain import explain
from gemmill.cli.export import export
from gemmill.cli.fuzz import fuzz
from gemmill.cli.generate import generate
from gemmill.cli.list import list_variants
from gemmill.cli.plan import plan
from gemmill.cli.prune import prune
from gemmill.cli.show import show
from gemmill.cli.tables import tables
from gemmill.cli.tune import tune
from gemmill.cli.verify import verify
from gemmill.cli.wheel import wheel

app = typer.Typer(name="gemmill", rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("list")(list_variants)
for verb in (plan, generate, build, show, export, explain, verify, fuzz, tune, audit, prune, convert, wheel, doctor):
    app.command(verb.__name__)(verb)
app.add_typer(tables, name="table", help="Look at tuned tables, compare and merge them.")
app.add_typer(builds, name="builds", help="Look at builds, choose which one serves, remove them.")
app.add_typer(cache, name="cache", help="Look after what is kept between builds.")


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
        # The reader has gone: there is nobody to tell, and Python must not complain at exit either.
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
