"""Options that families declare (`Asked`), as a verb takes them."""

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from gemmill.questions import Asked


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
