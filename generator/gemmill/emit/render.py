"""Rendering of templates. Python decides, the template prints; a hole that nothing fills is an error."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2

from gemmill.family import Config
from gemmill.locations import templates_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name


class TemplateError(Exception):
    """A template cannot be rendered; the text names template, line and cause."""


@dataclass(frozen=True, kw_only=True)
class EmittedFile:
    """A generated source file: path relative to the output folder, and its text."""

    path: PurePosixPath
    text: str


@cache
def environment(root: Path | None = None) -> jinja2.Environment:
    """The template environment over `root` (default: gemmill's own templates)."""
    result = jinja2.Environment(
        loader=jinja2.FileSystemLoader([root] if root else _folders()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    result.filters["cute_int"] = lambda value: f"_{value}"
    return result


def _folders() -> list[Path]:
    """gemmill's own templates, and those of families that lie elsewhere."""
    return [templates_dir(), *(family.home / "templates" for family in REGISTRY.families if family.home is not None)]


def render(template: str, values: dict[str, Any], *, root: Path | None = None) -> str:
    """The text of one template. Raises TemplateError."""
    try:
        return environment(root).get_template(template).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"template {error.name or template}, line {error.lineno}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise TemplateError(
            f"template {template} needs {error.name}, which does not exist in {root or templates_dir()}"
        ) from None
    except jinja2.UndefinedError as error:
        raise TemplateError(f"template {template}: {error.message}") from None


def emit(config: Config) -> EmittedFile:
    """The source of one variant. Configs that differ in launch settings alone have the same source."""
    config = config.compiled
    name, spelled = to_name(config), REGISTRY.kernels_of(config).spell(config)
    text = render(spelled.template, {"name": name, "symbol": symbol_of(config), **spelled.values})
    # A template is named after its output, with the suffix of its language.
    suffix = PurePosixPath(spelled.template).suffixes[-2]
    return EmittedFile(path=PurePosixPath(config.arch) / REGISTRY.family_of(config).name / (name + suffix), text=text)


def emit_unit(files: Sequence[EmittedFile]) -> str:
    """A translation unit that compiles several emitted files together, which shares the cost of their headers."""
    return "".join(f'#include "{file.path}"\n' for file in files)
