"""`gemmill verify`: numerics of what is built."""

from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import console, print_json, short, table


def verify(
    quick: Annotated[bool, typer.Option("--quick", help="Run each op once; without a GPU, its CPU reference.")] = False,
    filters: o.FilterOption = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Check the numerics of every variant.

    Holds each variant of a build against the reference, at shapes below, at and across tile edges.

    Needs a GPU of the build's architecture, except with --quick. INT8 must be equal to the last bit, FP8 within the
    bound that its accumulation allows. Exits 1 if anything is wrong.

    Examples:

        gemmill verify

        gemmill verify --filter kernel_schedule=pingpong --json

        gemmill verify --quick
    """
    import torch

    import gemmill
    from gemmill.numerics.verify import device_words, verify_ops, verify_variants

    if quick and filters:
        raise UsageError("--quick with --filter: it runs each op once, whatever the variants; leave one of them out")
    if not quick and not torch.cuda.is_available():
        raise UnavailableError(
            "verify runs kernels and torch finds no GPU: `gemmill verify --quick` runs each op's CPU reference"
        )
    loaded = gemmill.load(build)
    if quick:
        verdicts = list(verify_ops())
    else:
        names = frozenset(entry.name for entry in variants.filter_entries(loaded.manifest, filters))
        verdicts = list(verify_variants(loaded, names))
        if not verdicts:
            raise UnavailableError(
                f"no variant of build {loaded.build_id} for {loaded.manifest.arch} runs {device_words()}"
            )
    failed = [verdict for verdict in verdicts if verdict.failures]
    if as_json:
        print_json({"where": device_words(), "ok": not failed, "verdicts": verdicts})
    else:
        rows = [(short(v.name), v.cases, len(v.failures), f"{v.worst_fraction:.2f}") for v in verdicts]
        columns = ["name", "cases", "wrong", "worst error / tolerance"]
        console().print(table(f"{len(verdicts)} verified {device_words()}", columns, rows, right=columns[1:]))
        for verdict in failed:
            typer.echo(f"gemmill: {verdict.name}: {verdict.failures[0]}", err=True)
    if failed:
        raise typer.Exit(ExitCode.CHECK_FAILED)
