"""`gemmill show`: everything known about one variant."""

from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import UsageError
from gemmill.cli.output import console, print_json, seconds, size, table
from gemmill.cli.variants import Variant


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A variant's name or alias, or a glob that fits one variant only.")
    ],
    source: Annotated[bool, typer.Option("--source", help="Print the emitted source.")] = False,
    sass: Annotated[
        bool, typer.Option("--sass", help="Print the machine code, from the built extension (needs cuobjdump).")
    ] = False,
    select: o.MaybeSelectOption = None,
    arch: o.MaybeArchOption = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Show all facts of a variant.

    Its config, the calls that it takes, and as compiled: registers, spills, size, instructions.

    A name that is in no build is shown as far as it can be without compiling: config, rules and source.

    Examples:

        gemmill show "*rmstoken_bf16_e4m3*_sym"

        gemmill show "*rmstoken_bf16_e4m3*_sym" --source > kernel.cu

        gemmill show "*cutlass_bf16_bf16*" --sass | grep HMMA
    """
    if as_json and (source or sass):
        raise UsageError("--json with --source or --sass: these print text, leave --json out")
    variant = variants.variant_of(name, select, arch, build)
    if source:
        from gemmill.emit import emit

        typer.echo(emit(variant.config).text, nl=False)
    if sass:
        typer.echo(_sass(variant), nl=False)
    if source or sass:
        return
    if as_json:
        print_json({"name": variant.name, "config": variant.config, "rule": variant.status, "entry": variant.entry})
        return
    _print_variant(variant)


def _sass(variant: Variant) -> str:
    from gemmill.build.sass import disassemble
    from gemmill.build.toolchain import find_toolchain
    from gemmill.manifest import check_extension
    from gemmill.space.names import to_name

    if variant.entry is None or variant.folder is None or variant.manifest is None:
        raise UsageError(
            f"{variant.name} is not in a build: `gemmill build --filter {variant.name}` makes one that has its machine code"
        )
    extension = check_extension(variant.manifest, variant.folder)
    return disassemble(extension, find_toolchain().cuobjdump, to_name(variant.config.compiled))


def _print_variant(variant: Variant) -> None:
    from gemmill.space.filters import fields_of
    from gemmill.space.names import alias_of

    out = console()
    out.print(f"{variant.name} ({alias_of(variant.name)})")
    out.print(table("config", ["field", "value"], fields_of(variant.config).items()))
    if not variant.status:
        out.print(f"kept out by rule {variant.status.rule}: {variant.status.reason}")
    entry = variant.entry
    if entry is None or variant.manifest is None:
        out.print("not in a build")
        return
    facts: list[tuple[str, object]] = [
        ("ops", ", ".join(entry.ops) or "none"),
        ("build", variant.manifest.build_id),
        ("registers a thread", entry.registers),
        ("spills", size(entry.spill_bytes)),
        ("machine code", size(entry.code_bytes)),
        ("compile time", f"{seconds(entry.compile_seconds)} CPU, {size(entry.peak_memory_bytes)} peak"),
        ("instructions", ", ".join(f"{count} {opcode}" for opcode, count in entry.sass.items())),
        ("source digest", entry.source_digest[:16]),
    ]
    out.print(table("as compiled", ["", "value"], facts))


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
