"""`gemmill list`: the variants of a build or of a selection."""

from typing import TYPE_CHECKING

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.output import console, count, cut, entries_table, print_json, rejected_lines, size, table
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.manifest import Manifest
    from gemmill.space.selections import Selection


_ALIAS_COLUMNS = 12
"""Columns of a terminal that an alias takes, with the gap to its name."""


def list_variants(
    select: o.MaybeSelectOption = None,
    arch: o.MaybeArchOption = None,
    filters: o.FilterOption = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """List variants of a build or selection.

    Reads the manifest of the current build, or with --select enumerates a named set. Loads nothing, needs no GPU. A
    terminal of less than 160 columns has cut names: every verb takes the alias next to them.

    Examples:

        gemmill list

        gemmill list --filter a_dtype=s8 --filter kernel_schedule=pingpong

        gemmill list --select sweep --filter '*swapab*' --json
    """
    variants.refuse_both(select, build)
    if select is not None:
        selection = variants.selection_of(select, arch or Arch.SM90A, filters)
        _print_configs(selection, as_json)
    else:
        _print_entries(variants.build_of(build, arch)[1], filters, as_json)


def _print_configs(selection: "Selection", as_json: bool) -> None:
    from gemmill.space.names import alias_of, to_name

    if as_json:
        print_json([{"name": to_name(config), "config": config} for config in selection.configs])
        return
    names = [to_name(config) for config in selection.configs]
    rows = [(cut(name, _ALIAS_COLUMNS), alias_of(name)) for name in names]
    console().print(
        table(f"{count(len(rows), 'variant')} of {selection.name} for {selection.arch}", ["name", "alias"], rows)
    )


def _print_entries(manifest: "Manifest", filters: list[str] | None, as_json: bool) -> None:
    entries = variants.filter_entries(manifest, filters)
    if as_json:
        print_json(entries)
        return
    title = f"{count(len(entries), 'variant')} in build {manifest.build_id} for {manifest.arch} ({size(manifest.extension_bytes)})"
    console().print(entries_table(title, entries))
    for line in rejected_lines(manifest.rejected):
        typer.echo(f"not built: {line}", err=True)
