"""Options that families declare (`Asked`), as a verb takes them."""

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from gemmill.questions import Asked
from gemmill.registry import questions_by_family


class Panels(TyperCommand):
    """A verb that takes the options of all families. Its help has a section for each family, in the family's words."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, the families' sections and the verb's own options."""
        families = questions_by_family()
        asked = {option.name for options in families.values() for option in options}
        own = [p for p in self.get_params(ctx) if p.name not in asked]
        rows = {p: record for p in own if (record := p.get_help_record(ctx)) is not None}
        options = [row for p, row in rows.items() if isinstance(p, TyperOption) or p.name == "help"]
        sections = {
            "Arguments": [row for row in rows.values() if row not in options],
            **{title: list(map(_record, told)) for title, told in families.items()},
            "Options": options,
        }
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def take(verb: Callable[..., None], options: Iterable[Asked]) -> None:
    """Put options after a verb's first parameter, in the place of its `**told`."""
    first, *own, _ = inspect.signature(verb).parameters.values()
    behind = (parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)
    whole = inspect.Signature([first, *map(_parameter, options), *behind])
    verb.__signature__ = whole  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in whole.parameters.values()}


def _parameter(option: Asked) -> inspect.Parameter:
    kind: Any = StrEnum(option.name.title(), {c.upper(): c for c in option.choices}) if option.choices else option.kind
    default = kind(option.default) if option.choices and option.default is not None else option.default
    told = typer.Option(*option.flags.split(" "), min=option.least, help=f"{option.help}.")
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, told],
    )


def _record(option: Asked) -> tuple[str, str]:
    """A line of help: the option as typed, and its text."""
    taken = "" if option.kind is bool else f" <{'|'.join(option.choices) or option.kind.__name__}>"
    default = f"  [default: {option.flags.split('/')[0].lstrip('-')}]" if option.kind is bool and option.default else ""
    required = "  [required]" if option.required else ""
    return f"{option.flags.replace('/', ' / ')}{taken}", f"{option.help}.{default}{required}"
