"""Options that several verbs share, and the conversion of their texts to values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli.exits import UsageError
from gemmill.vocab import Arch, arch_of

if TYPE_CHECKING:
    from gemmill.build.scheduler import Scheduler


def parse_arch(text: str) -> Arch:
    """The architecture that `sm90a`, `sm_90a` or `90a` names. Raises BadParameter."""
    if isinstance(text, Arch):
        return text
    name = text.lower().removeprefix("sm").removeprefix("_")
    try:
        return Arch(f"sm{name}")
    except ValueError:
        number = name.rstrip("af")
        serving = arch_of(divmod(int(number), 10)) if number.isdecimal() else ""
        hint = f": {serving} has the kernels of that GPU" if serving in set(Arch) else ""
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Arch)}{hint}") from None


def parse_bytes(text: str) -> int:
    """The bytes that `60MB`, `1.5 GiB` or a plain number means. Raises BadParameter."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    number = text.strip().lower().rstrip("bikmg ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        size = float(number) * units[unit]
    except (ValueError, KeyError):
        raise typer.BadParameter(f"{text!r} is not a size such as 60MB, 1.5GiB or 60000000") from None
    if not 1 <= size < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a size of at least one byte")
    return int(size)


def parse_share(text: str) -> float:
    """The share that `3%` or `0.03` means, as a fraction of 1. Raises BadParameter."""
    if isinstance(text, float):
        return text
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{text!r} is not a share such as 3% or 0.03")
    return value


ArchOption = Annotated[
    Arch,
    typer.Option(
        "--arch", parser=parse_arch, metavar="ARCH", help="sm90a, sm100a or sm120f; sm_90a and 90a are read too."
    ),
]
MaybeArchOption = Annotated[
    Arch | None,
    typer.Option(
        "--arch",
        parser=parse_arch,
        metavar="ARCH",
        help="Of the selection (sm90a by default), or of the build to read.",
    ),
]
SelectOption = Annotated[
    str,
    typer.Option("--select", metavar="NAME", help="A named set of variants: smoke, default, nvcc, serving or sweep."),
]
OwnSelectOption = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="NAME",
        help="A named set of variants: smoke, default, nvcc, serving or sweep.",
        show_default="default, or nvcc without the CuTe DSL",
    ),
]
MaybeSelectOption = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="NAME",
        help="Look in this named set (smoke, default, nvcc, serving, sweep), not in a build.",
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="PATTERN",
        help="Keep variants that fit all of these: a field as key=value, a glob over names, an alias, or re:REGEX.",
    ),
]
BuildOption = Annotated[
    str | None,
    typer.Option(
        "--build", metavar="ID_OR_PATH", help="The build to read; by default GEMMILL_BUILD, else the current one."
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Folder of builds and cache; by default GEMMILL_HOME, else .gemmill in a checkout, else ~/.cache/gemmill.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, metavar="N", help="Compilers at a time; by default as many as cores and memory allow."
    ),
]
MaxSizeOption = Annotated[
    int | None,
    typer.Option(
        "--max-size",
        parser=parse_bytes,
        metavar="SIZE",
        help="Refuse to publish an extension larger than this, such as 60MB.",
    ),
]


MarginOption = Annotated[
    float,
    typer.Option(
        "--margin", parser=parse_share, metavar="SHARE", help="Today's choice stays unless beaten by this, such as 3%."
    ),
]


TrustNetworkOption = Annotated[
    bool,
    typer.Option("--trust-network", help="Take a --scheduler without TLS: all who reach it may run code here."),
]


def refuse_beside(mode: str, why: str, **given: object) -> None:
    """Refuse options that do nothing together with `mode`; `given` has them by their names in Python.

    Raises UsageError for the first of them in the command, with the reason `why`.
    """
    for name, value in given.items():
        if value not in (None, False, [], ()):
            option = f"--{name.strip('_').replace('_', '-')}"
            raise UsageError(f"{option} with {mode}: {why}, leave {option} out")


def refuse_without(mode: str, **given: object) -> None:
    """Refuse options that mean something with `mode` alone, as `refuse_beside`. Raises UsageError for the first of them
    in the command.
    """
    for name, value in given.items():
        if value not in (None, False, [], ()):
            option = f"--{name.strip('_').replace('_', '-')}"
            raise UsageError(f"{option} without {mode}: it means nothing there, add {mode} or leave {option} out")


def scheduler_of(address: str | None, *, trust_network: bool) -> "Scheduler | None":
    """The cluster at the address. Raises UsageError for one that anybody could use, and for trust without a cluster."""
    from gemmill.build.scheduler import Scheduler, SchedulerError

    if address is None:
        refuse_beside("no --scheduler", "there is no cluster to trust", trust_network=trust_network)
    try:
        return None if address is None else Scheduler(address=address, trusts_network=trust_network)
    except SchedulerError as error:
        raise UsageError(str(error)) from None
