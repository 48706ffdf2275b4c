"""Whether a family's declaration holds for its kernels' configs and its binding, as far as names and sources show it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmill.family.declaration import Config, Family, Kernels
from gemmill.family.schema import ArgumentKind
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


_WIDEST = json.dumps(
    {
        "name": "widest",
        "accumulator": "f32",
        "inputs": [[f"{along}_{at}", along, "f32"] for along in ("row", "column", "scalar") for at in range(4)],
        "steps": [],
        "result": 0,
    }
)
"""An epilogue with as many arguments of each kind as there can be."""


def examine_binding(family: Family, kernels: Path) -> None:
    """Raises ValueError for the first name that the family's binding and its ops do not share."""
    binding, tensors, values = _binding(family, kernels)
    ops = family.asks.ops
    if family.epilogues is not None:
        ops = (*ops, family.epilogues.op(_WIDEST))
    roles = {role for op in ops for role in (*op.role_of, *op.returned)}
    known = {"argument": roles, "size": {name for op in ops for name in op.program.values}}
    for kind, article, names in (("argument", "an", tensors), ("size", "a", values)):
        if unknown := [name for name in names if name not in known[kind]]:
            raise ValueError(
                f"family {family.name!r}: {binding} reads {unknown[0]!r}, and no op has {article} {kind} of that name, of "
                f"{', '.join(sorted(known[kind]))}"
            )
    for op in ops:
        given = {
            role
            for role, parameter in zip(op.role_of, op.schema.parameters, strict=True)
            if parameter.kind is ArgumentKind.TENSOR
        }
        if unread := sorted({*given, *op.returned} - set(tensors)):
            raise ValueError(
                f"family {family.name!r}, op {op.schema.name!r}: {binding} does not read {unread[0]!r}, of {', '.join(tensors)}"
            )


def _binding(family: Family, kernels: Path) -> tuple[str, list[str], list[str]]:
    """The file that declares the family to C++, and the names of tensors and values there."""
    declared = re.compile(rf'Family const \w+\{{\s*"{family.name}",\s*\{{([^}}]*)\}},\s*\{{([^}}]*)\}}')
    for path in sorted(kernels.glob("*/*.cpp")):
        if match := declared.search(path.read_text(encoding="utf-8")):
            tensors, values = (re.findall(r'"(\w+)"', group) for group in match.groups())
            return str(path.relative_to(kernels)), tensors, values
    raise ValueError(f"family {family.name!r} is declared to C++ by no file of {kernels}")


def _selected(family: Family) -> Iterator[tuple[str, Config]]:
    for selection, configs in family.selections.items():
        for arch in Arch:
            yield from ((selection, config) for config in configs(arch))


def _contradiction(kernels: Kernels, config: Any, templates: Path) -> str:
    """In words; empty where there is none."""
    if type(config) is not kernels.config:
        return f"a config is {type(config).__name__}, declared is {kernels.config.__name__}"
    fields = kernels.grammar.words(config)
    for field in fields:
        if not field.isalnum():
            return f"field {field!r} of the name of {config} is no word of letters and digits, which fields are made of"
    try:
        again = kernels.grammar.parse(config.arch, config.tag, fields)
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
