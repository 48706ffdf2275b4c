"""Whether what a family declares of its kernels holds for their configs: what only making names and sources can show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmill.family.declaration import Config, Family, Kernels
from gemmill.vocab import Arch, Compiler

_SUFFIX_OF = {Compiler.NVCC: ".cu", Compiler.CUTEDSL: ".py"}


def examine(family: Family, templates: Path) -> None:
    """Raises ValueError for the first config of the family's selections that contradicts the declaration of its kernels."""
    declared = {kernels.tag: kernels for kernels in family.kernels}
    for selection, config in _selected(family):
        if config.tag not in declared:
            raise ValueError(
                f"family {family.name!r}: selection {selection!r} has a config of tag {config.tag!r}, its kernels are of "
                f"{', '.join(map(repr, declared))}"
            )
        if contradiction := _contradiction(declared[config.tag], config, templates):
            raise ValueError(f"family {family.name!r}, kernels {config.tag!r}: {contradiction}")


def _selected(family: Family) -> Iterator[tuple[str, Config]]:
    for selection, configs in family.selections.items():
        for arch in Arch:
            yield from ((selection, config) for config in configs(arch))


def _contradiction(kernels: Kernels, config: Any, templates: Path) -> str:
    """In words; empty where there is none."""
    if type(config) is not kernels.config:
        return f"a config is {type(config).__name__}, declared is {kernels.config.__name__}"
    fields = list(kernels.to_fields(config))
    for field in fields:
        if not field.isalnum():
            return f"field {field!r} of the name of {config} is no word of letters and digits, which fields are made of"
    try:
        again = kernels.from_fields(config.arch, config.tag, fields)
    except ValueError as error:
        return f"name {'_'.join(fields)} of {config} is not read back: {error}"
    if again != config:
        return f"name {'_'.join(fields)} of {config} is read back as {again}"
    template = kernels.spell(config.compiled).template
    if not template.endswith(suffix := f"{_SUFFIX_OF[kernels.compiler]}.jinja"):
        return f"template {template!r} is for {kernels.compiler}, which compiles what comes of {suffix}"
    if not (templates / template).is_file():
        return f"template {template!r} of {'_'.join(fields)} is not in {templates}"
    return ""
