"""Narrowing a selection by patterns: a glob on the name, an alias, `re:REGEX`, or `key=value` on a field of the config."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any

from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.space.names import alias_of, current_name, is_alias, to_name
from gemmill.space.selections import Selection

_KEY_VALUE = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)=(.*)")


class FilterError(ValueError):
    """An unreadable pattern, or one without a match; the text lists the possible values."""


def apply(selection: Selection, patterns: Sequence[str]) -> Selection:
    """The configs of a selection that fit every pattern. Raises FilterError for a key or value that the selection does
    not have, and for an empty result.
    """
    configs = selection.configs
    for pattern in patterns:
        fits = _compile(pattern, selection.configs)
        configs = tuple(config for config in configs if fits(config))
    if patterns and not configs:
        raise FilterError(
            f"no variant of selection {selection.name!r} ({len(selection.configs)} variants) fits {' and '.join(map(repr, patterns))}: "
            "see `gemmill list` for their names"
        )
    return dataclasses.replace(selection, configs=configs)


def fields_of(config: Config) -> dict[str, str]:
    """Every field of a config as text, by the key that a filter uses."""
    kernels = REGISTRY.kernels_of(config)
    own = kernels.grammar.filters(config)
    return {"family": REGISTRY.family_of(config).name, "compiler": kernels.compiler.value} | {
        key: _to_text(value) for key, value in own.items()
    }


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "auto" if value is None else str(value)


def _compile(pattern: str, configs: Sequence[Config]) -> Callable[[Config], bool]:
    if pattern.startswith("re:"):
        try:
            regex = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise FilterError(f"filter {pattern!r} is not a regular expression: {error}") from None
        return lambda config: regex.search(to_name(config)) is not None
    if match := _KEY_VALUE.fullmatch(pattern):
        return _key_value(match[1], match[2], configs)
    if is_alias(pattern):
        return lambda config: alias_of(to_name(config)) == pattern
    return lambda config: fnmatch.fnmatchcase(to_name(config), current_name(pattern))


def _key_value(key: str, value: str, configs: Sequence[Config]) -> Callable[[Config], bool]:
    known = [fields_of(config) for config in configs]
    keys = list(dict.fromkeys(name for row in known for name in row))
    if known and key not in keys:
        raise FilterError(f"filter {key}={value}: there is no field {key!r}; the fields are {', '.join(keys)}")
    values = sorted({row[key] for row in known if key in row})
    if value.lower() not in values:
        raise FilterError(f"filter {key}={value}: no variant has that {key}; the values are {', '.join(values)}")
    return lambda config: fields_of(config).get(key) == value.lower()
