"""`gemmill verify`: numerics of a build's kernels."""

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import console, print_json, short, table
from gemmill.cli.report import write_report

PAIRS = 100_000
"""Pairs to compare without --pairs or --seconds."""


def verify(
    quick: Annotated[bool, typer.Option("--quick", help="Run each op once; without a GPU, its CPU reference.")] = False,
    filters: o.FilterOption = None,
    batches: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Compare rows alone with the same rows in batches; without a GPU, of the reference.",
        ),
    ] = False,
    pairs: Annotated[
        int | None,
        typer.Option(
            "--pairs", min=1, help="With --batch-invariant: stop after so many pairs; 100000 if --seconds is not given."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="With --batch-invariant: stop after this time.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="With --batch-invariant: another seed draws other pairs.")
    ] = 0,
    families: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="With --batch-invariant: of this family; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Verify, run memcheck, time ten calls; write one JSON for an issue."
        ),
    ] = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Check the numerics of every variant.

    Compares each variant of a build with the reference, at shapes below, at and across tile edges.

    Needs a GPU of the build's architecture, except with --quick. INT8 must be equal to the last bit, FP8 within the
    bound that its accumulation allows. --report first builds missing kernels. Exits 1 if anything is wrong.

    Examples:

        gemmill verify

        gemmill verify --filter kernel_schedule=pingpong --json

        gemmill verify --quick

        gemmill verify --batch-invariant --pairs 100 --json

        gemmill verify --batch-invariant --filter rotary=e4m3 --seconds 20

        gemmill verify --report my_gpu.json
    """
    import torch

    if not batches:
        o.refuse_without("--batch-invariant", pairs=pairs, seconds=seconds, seed=seed or None, family=families)
    if report is not None:
        all_there = "it runs all that the build has"
        o.refuse_beside("--report", all_there, quick=quick, filter=filters, batch_invariant=batches)
        write_report(report, build, as_json=as_json)
        return
    if quick and filters:
        raise UsageError("--quick with --filter: it runs each op once, whatever the variants; leave one of them out")
    if not quick and not batches and not torch.cuda.is_available():
        raise UnavailableError(
            "verify runs kernels and torch finds no GPU: `gemmill verify --quick` runs each op's CPU reference"
        )
    if batches:
        o.refuse_beside("--batch-invariant", "it draws calls of its own", quick=quick or None)
        _verify_batches(pairs, seconds, seed, tuple(families or ()), tuple(filters or ()), build, as_json)
        return
    _verify_variants(build, filters, quick=quick, as_json=as_json)


def _verify_variants(build: str | None, filters: list[str] | None, *, quick: bool, as_json: bool) -> None:
    import gemmill
    from gemmill.numerics.verify import device_words, verify_ops, verify_variants

    loaded = gemmill.load(build)
    if quick:
        verdicts = list(verify_ops())
    else:
        names = frozenset(entry.name for entry in variants.filter_entries(loaded.manifest, filters))
        verdicts = list(verify_variants(loaded, names))
        if not verdicts:
            raise UnavailableError(
                f"no variant of build {loaded.build_id} for {loaded.manifest.made_for} runs {device_words()}"
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


def _verify_batches(
    pairs: int | None,
    seconds: float | None,
    seed: int,
    families: tuple[str, ...],
    filters: tuple[str, ...],
    build: str | None,
    as_json: bool,
) -> None:
    import torch

    import gemmill
    from gemmill.numerics.batches import ON_CPU, ON_GPU, Campaign, Limits
    from gemmill.numerics.verify import device_words
    from gemmill.registry import REGISTRY

    for name in families:
        if name not in REGISTRY.choices:
            raise UsageError(f"--family {name}: there are {', '.join(REGISTRY.choices)}")
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        gemmill.load(build)
    else:
        o.refuse_beside("--batch-invariant", "without a GPU the ops run the reference, without a build", build=build)
    most = PAIRS if pairs is None and seconds is None else pairs
    limits = Limits(pairs=most, seconds=seconds, **(ON_GPU if has_gpu else ON_CPU))
    try:
        campaign = Campaign(
            limits,
            seed=seed,
            families=families,
            filters=filters,
            tell=lambda text: typer.echo(f"gemmill: {text}", err=True),
        )
        found = campaign.run()
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        print_json(
            {"where": device_words(), "ok": not found.different, "seed": seed, "total": found.total} | vars(found)
        )
    else:
        rows = [(name, f"{count:,}") for name, count in found.pairs.items()]
        title = f"{found.total:,} pairs of a row alone and in a batch, {device_words()}; {found.different} differ"
        console().print(table(title, ["family", "pairs"], rows, right=["pairs"]))
        for sentence in found.examples:
            typer.echo(f"gemmill: {sentence}", err=True)
    if found.different:
        raise typer.Exit(ExitCode.CHECK_FAILED)
