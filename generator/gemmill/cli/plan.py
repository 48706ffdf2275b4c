"""`gemmill plan`: the kernels that a build would compile, without compiling them."""

from collections import Counter
from typing import TYPE_CHECKING

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.output import console, print_json, seconds, size, table
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.build.options import BuildPlan
    from gemmill.space.selections import Selection


def plan(
    select: o.SelectOption = "default",
    arch: o.ArchOption = Arch.SM90A,
    filters: o.FilterOption = None,
    jobs: o.JobsOption = None,
    max_size: o.MaxSizeOption = None,
    home: o.HomeOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Print the kernels that a build would compile, and their cost.

    Counts variants, kernels and translation units, estimates CPU time and size, and lists the configs that the rules
    reject. Compiles nothing and writes nothing.

    Examples:

        gemmill plan --select sweep

        gemmill plan --select sweep --filter out_dtype=bf16 --max-size 60MB --json
    """
    from gemmill.build.options import BuildOptions
    from gemmill.build.planning import plan as plan_build

    selection = variants.selection_of(select, arch, filters)
    planned = plan_build(selection, BuildOptions(jobs=jobs, max_size=max_size, home=home))
    print_plan(selection, planned, max_size, as_json)


def print_plan(selection: "Selection", planned: "BuildPlan", max_size: int | None, as_json: bool) -> None:
    """Print a plan with the rejections of its selection, and whether its build would have more than `max_size` bytes."""
    if as_json:
        print_json(
            {
                "selection": selection.name,
                "arch": selection.arch,
                "variants": len(planned.configs),
                "kernels": len(planned.kernels),
                "units": len(planned.units),
                "cached": planned.cached,
                "known_bad": planned.known_bad,
                "estimated_cpu_seconds": planned.estimated_cpu_seconds,
                "estimated_bytes": planned.estimated_bytes,
                "max_bytes": max_size,
                "jobs": planned.jobs,
                "without_toolchain": planned.without_toolchain,
                "rejected": [
                    {"name": r.name, "rule": r.status.rule, "reason": r.status.reason} for r in selection.rejections
                ],
            }
        )
        return
    rows = [
        ("variants", len(planned.configs)),
        ("kernels (variants that differ in launch settings share one)", len(planned.kernels)),
        ("objects in the cache", len(planned.cached)),
        ("translation units to compile", len(planned.units)),
        ("known not to compile (--retry-failed)", len(planned.known_bad)),
        ("estimated CPU time", seconds(planned.estimated_cpu_seconds)),
        ("estimated size of the extension", size(planned.estimated_bytes)),
    ]
    console().print(table(f"{selection.name} for {selection.arch}", ["plan", ""], rows, right=[""]))
    if max_size is not None and planned.estimated_bytes > max_size:
        typer.echo(
            f"gemmill: that is more than the {size(max_size)} of --max-size, so a build would be refused: leave variants out "
            "with --filter",
            err=True,
        )
    if planned.without_toolchain:
        typer.echo(f"gemmill: nothing can be compiled yet: {planned.without_toolchain}", err=True)
    reasons = Counter((r.status.rule, r.status.reason) for r in selection.rejections)
    if reasons:
        rejected = [(count, rule, reason) for (rule, reason), count in reasons.most_common()]
        console().print(
            table(
                f"{len(selection.rejections)} kept out by rules", ["count", "rule", "reason"], rejected, right=["count"]
            )
        )
