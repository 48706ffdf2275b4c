"""How a user asks about a call in words: the options of `gemmill explain` that a family reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

NONE = "none"
"""A choice with the meaning of an omitted option."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One option. Families that share one agree in all but its help and its choices."""

    name: str
    """By which the family's cases read it."""
    flags: str
    """As typed; one that is on by default has both spellings, with a slash between them."""
    help: str
    """Begins with a capital and ends without a full stop."""
    kind: type = int
    """int, str or bool."""
    choices: tuple[str, ...] = ()
    """Of a str; any where there are none."""
    default: Any = None
    least: int | None = None
    required: bool = False
    """Whether the family's calls cannot do without it."""
    is_size: bool = False
    """Whether it is a size of the call, which `gemmill export` needs."""

    @property
    def spelled(self) -> str:
        """The option as its user typed it."""
        return self.flags.split("/")[-1]

    def is_given(self, question: Mapping[str, Any]) -> bool:
        """Whether a question says something other than the default."""
        return question[self.name] not in ((self.default,) if self.kind is bool else (None, False))


def size(letter: str, help: str) -> Asked:
    """A size of a GEMM's call, by its letter; a call cannot do without m."""
    return Asked(name=letter, flags=f"-{letter}", least=0, required=letter == "m", is_size=True, help=help)


def number(name: str, help: str, least: int | None = None) -> Asked:
    """A number, by an option of its name."""
    return Asked(name=name, flags=_flag(name), least=least, help=help)


def word(name: str, help: str, *choices: str, default: str | None = None) -> Asked:
    """A word, by an option of its name; any where there are no choices."""
    return Asked(name=name, flags=_flag(name), kind=str, choices=choices, default=default, help=help)


def switch(name: str, help: str, flags: str = "", *, default: bool = False) -> Asked:
    """A setting that is on or off, by an option of its name or by others."""
    return Asked(name=name, flags=flags or _flag(name), kind=bool, default=default, help=help)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def merged(options: Iterable[Asked]) -> dict[str, Asked]:
    """Options of several families, each once, by name. Raises ValueError where two of one name are not the same."""
    found: dict[str, Asked] = {}
    for option in options:
        before = found.setdefault(option.name, option)
        if (before.flags, before.kind, before.default) != (option.flags, option.kind, option.default):
            raise ValueError(
                f"option {option.name!r} is {before.flags} of {before.kind.__name__} to one family and {option.flags} of "
                f"{option.kind.__name__} to another"
            )
        if before is not option:
            found[option.name] = replace(
                option,
                help=_joined(before.help, option.help),
                choices=tuple(dict.fromkeys(before.choices + option.choices))
                if before.choices and option.choices
                else (),
                required=False,
            )
    return found


def _joined(before: str, added: str) -> str:
    """The help of an option that several families have, a sentence each, and each once."""
    return before if added in before.split(". ") else f"{before}. {added}"
