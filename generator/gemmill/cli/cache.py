"""`gemmill cache`: what is kept between builds."""

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import ExitCode
from gemmill.cli.output import console, print_json, size, table

cache = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
