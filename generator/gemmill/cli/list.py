"""`gemmill list`: the variants of a build or of a selection."""

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.output import console, print_json, seconds, size, table
from gemmill.manifest import Manifest
from gemmill.space.names import to_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch


def list_variants(
    select: o.MaybeSelectOption = None,
    arch: o.ArchOption = Arch.SM90A,
    filters: o.FilterOption = [],
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """List the variants of a build, or with --select those of a named set.

    Reads the newest build's manifest; loads nothing and needs no GPU.

    Examples:

        gemmill list

        gemmill list --filter a=s8 --filter 'schedule=pingpong'

        gemmill list --select sweep --filter '*swapab*' --json
    """
    if select is not None:
        selection = variants.selection_of(select, arch, filters)
        _print_configs(selection, as_json)
    else:
        _print_entries(variants.build_of(build)[1], filters, as_json)


def _print_configs(selection: Selection, as_json: bool) -> None:
    if as_json:
        print_json([{"name": to_name(config), "config": config} for config in selection.configs])
        return
    rows = [(to_name(config),) for config in selection.configs]
    console().print(table(f"{len(rows)} variants of {selection.name} for {selection.arch}", ["name"], rows))


def _print_entries(manifest: Manifest, filters: list[str], as_json: bool) -> None:
    entries = variants.filter_entries(manifest, filters)
    if as_json:
        print_json(entries)
        return
    title = f"{len(entries)} variants in build {manifest.build_id} for {manifest.arch} ({size(manifest.extension_bytes)})"
    columns = ["name", "registers", "spills", "code", "compile"]
    rows = [(e.name, e.registers, size(e.spill_bytes), size(e.code_bytes), seconds(e.compile_seconds)) for e in entries]
    console().print(table(title, columns, rows, right=columns[1:]))
    for rejected in manifest.rejected:
        console(stderr=True).print(f"not built: {rejected.name}: {rejected.error}", markup=False)
