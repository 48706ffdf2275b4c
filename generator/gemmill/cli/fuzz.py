"""`gemmill fuzz`: random calls of the ops."""

from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import count, print_json, seconds

if TYPE_CHECKING:
    from gemmill.fuzz.campaign import Report, Single
    from gemmill.fuzz.findings import Finding, FuzzSpec

DEFAULT_SECONDS = 60.0


def fuzz(
    ops: Annotated[
        list[str] | None, typer.Option("--op", metavar="NAME", help="Call this op; may be repeated. By default all.")
    ] = None,
    seconds_: Annotated[
        float | None, typer.Option("--seconds", min=0, help="Stop after this time; 60 if --calls is not given either.")
    ] = None,
    calls: Annotated[int | None, typer.Option("--calls", min=1, help="Stop after so many calls.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed makes other calls.")] = 0,
    only: Annotated[
        int | None, typer.Option("--only", min=0, metavar="K", help="Make call K alone, and say which it is.")
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Where the tensors are; by default on a GPU if there is one.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes that make calls at a time; by default one.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds after which a call counts as hanging.")
    ] = 30.0,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Make random calls, right ones and broken ones.

    Compares every result with the reference and watches the memory around it; a broken call must raise its sentence and
    write nothing.

    Processes of their own make the calls: one that crashes or hangs is a finding. Each finding has a command that makes
    its call alone. On the CPU the ops run the reference, without a build. Exits 1 for any finding.

    Examples:

        gemmill fuzz --calls 100 --jobs 2

        gemmill fuzz --cpu --op cutlass_scaled_mm --calls 100 --json

        gemmill fuzz --op dynamic_scaled_fp8_quant --seed 3 --only 4711 --gpu
    """
    from gemmill.fuzz.campaign import Budget, call_alone
    from gemmill.fuzz.campaign import fuzz as run

    if gpu is False:
        o.refuse_beside("--cpu", "there the ops run the reference, without a build", build=build)
    spec = _spec(ops, seed, gpu, build)
    if only is not None:
        o.refuse_beside("--only", "it makes one call", seconds=seconds_, calls=calls, jobs=jobs)
        single = call_alone(spec, only, timeout)
        _print_single(single, as_json)
        found = single.findings
    else:
        limit = DEFAULT_SECONDS if seconds_ is None and calls is None else seconds_
        budget = Budget(calls=calls, seconds=limit, jobs=jobs or 1, call_seconds=timeout)
        report = run(spec, budget, _tell)
        _print_report(report, as_json)
        found = report.findings
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _spec(ops: list[str] | None, seed: int, gpu: bool | None, build: str | None) -> "FuzzSpec":
    import torch

    from gemmill.fuzz.findings import FuzzSpec
    from gemmill.runtime.schemas import BY_NAME, OPS

    for name in ops or ():
        if name not in BY_NAME:
            raise UsageError(f"no op {name!r}: there are {', '.join(BY_NAME)}")
    has_gpu = torch.cuda.is_available()
    if gpu and not has_gpu:
        raise UnavailableError("--gpu runs kernels and torch finds no GPU: `gemmill fuzz --cpu` runs the ops' CPU path")
    return FuzzSpec(
        ops=tuple(ops or (op.name for op in OPS)), seed=seed, gpu=has_gpu if gpu is None else gpu, build=build
    )


def _tell(finding: "Finding") -> None:
    typer.echo(f"gemmill: {finding.kind}: {finding.reproducer}: {finding.detail}", err=True)


def _print_report(report: "Report", as_json: bool) -> None:
    if as_json:
        print_json({"ok": not report.findings} | vars(report))
        return
    left_out = f", {report.left_out} left out that the build has no variant for" if report.left_out else ""
    typer.echo(
        f"{count(report.calls, 'call')} {report.where} in {seconds(report.seconds)}, seed {report.seed}: {report.legal} legal, "
        f"{report.broken} broken{left_out}; {count(len(report.findings), 'finding')}"
    )


def _print_single(single: "Single", as_json: bool) -> None:
    if as_json:
        print_json({"ok": not single.findings} | vars(single))
        return
    if single.call:
        typer.echo(f"{'a broken call, before it was broken' if single.broken else 'a legal call'}: {single.call}")
    for finding in single.findings:
        _tell(finding)
    typer.echo(f"{single.where}: {count(len(single.findings), 'finding')}")
