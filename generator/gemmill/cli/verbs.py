"""The command's verbs, each imported at its first use: `gemmill --help` imports none."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

TEXTS = {
    "list": "List variants of a build or selection.",
    "plan": "Print the kernels that a build would compile, and their cost.",
    "generate": "Write the sources of a selection, CUDA or Python.",
    "build": "Compile a selection of variants into an extension.",
    "show": "Show all facts of a variant.",
    "export": "Write a kernel that compiles on its own, or builds for the Hub.",
    "explain": "Print which variant a call gets, and why.",
    "verify": "Check the numerics of every variant.",
    "fuzz": "Make random calls, right ones and broken ones.",
    "time": "Time variants on sizes, and print times, TFLOP/s and GB/s.",
    "tune": "Time variants on shapes and write the table to choose by.",
    "audit": "List shapes without a variant or a measured row.",
    "prune": "Write the smallest selection that is near the best everywhere.",
    "convert": "Convert a safetensors checkpoint, and print each layer's error.",
    "wheel": "Write a wheel of gemmill with builds, or of a build alone.",
    "doctor": "Report whether machine and build fit.",
    "table": "Look at tuned tables, compare and merge them.",
    "builds": "Look at builds, choose which one serves, remove them.",
    "cache": "Look after the files kept between builds.",
}
"""The text of each verb in the help of the whole command.

It is the first paragraph of the verb's own help; a test compares them.
"""

_FUNCTIONS = {"list": "list_variants", "time": "time_variants"}
"""By verb, the functions that cannot have its name."""
_GROUPS = {"table": "tables", "builds": "builds", "cache": "cache"}
"""Verbs that have verbs, and the module and object of each."""


class _Commands(Mapping[str, Any]):
    """typer's command of each verb, by name. Iterating over names imports nothing."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, verb: str) -> Any:
        if verb not in TEXTS:
            raise KeyError(verb)
        if verb not in self._made:
            self._made[verb] = _made(verb)
        return self._made[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)

    def __len__(self) -> int:
        return len(TEXTS)


def _made(verb: str) -> Any:
    module = import_module(f"gemmill.cli.{_GROUPS.get(verb, verb)}")
    if verb in _GROUPS:
        return typer.main.get_command(getattr(module, _GROUPS[verb]))
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(verb, cls=getattr(module, "COMMAND", None))(getattr(module, _FUNCTIONS.get(verb, verb)))
    return typer.main.get_command(alone)


class Group(TyperGroup):
    """A group of verbs, in which help of a verb begins soon."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._verb_is_first = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, and note whether a verb comes first."""
        self._verb_is_first = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before a verb. Where a verb comes first, it leaves out those of help and completion.

        For such an omitted option, typer imports pydantic, which takes longer than all else.
        """
        options = super().get_params(ctx)
        if not self._verb_is_first:
            return options
        return [option for option in options if option.name not in ("help", "install_completion", "show_completion")]


class Verbs(Group):
    """The group of all verbs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing is put into it

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of help."""
        return list(TEXTS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs in help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(TEXTS.items()))
