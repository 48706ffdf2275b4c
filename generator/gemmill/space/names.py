"""The only place that makes a kernel's name, and reads it back.

A name is a C identifier: architecture, tag of its kernels, and the words of their grammar, joined by `_`.
"""

import hashlib
import re
from functools import cache

from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.vocab import Arch

_FORMER_ARCHS = {"sm120a": Arch.SM120F}
"""Architectures of earlier releases, and those that have their kernels now."""


@cache
def to_name(config: Config) -> str:
    """The name of a config; different configs have different names."""
    return "_".join([config.arch, config.tag, *REGISTRY.kernels_of(config).grammar.words(config, config.tag)])


def alias_of(name: str) -> str:
    """A short name that stands for a variant's: 8 digits of its digest."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def is_alias(text: str) -> bool:
    """Whether a text may be one."""
    return re.fullmatch("[0-9a-f]{8}", text) is not None


def symbol_of(config: Config) -> str:
    """The C symbol of the compiled kernel's launch function."""
    return "gemmill_" + to_name(config.compiled)


def parse_name(name: str) -> Config:
    """The config whose name this is, or was in an earlier release. Raises ValueError, naming the field that cannot be read."""
    try:
        arch, tag, *words = name.split("_") if name.count("_") else ("", "")
        if not tag:
            raise ValueError("it has no architecture and tag")
        grammar = REGISTRY.tagged(tag).grammar
        config: Config = grammar.parse(_FORMER_ARCHS.get(arch) or Arch(arch), tag, words)
    except ValueError as error:
        raise ValueError(f"{name!r} is not a kernel name: {error}") from None
    if (again := "_".join([arch, tag, *grammar.words(config, tag)])) != name:
        raise ValueError(f"{name!r} is not a kernel name: it would be written {again!r}")
    return config


def current_name(name: str) -> str:
    """The name that a kernel has now, of one that it has or had in an earlier release; other texts stay as they are."""
    arch, _, rest = name.partition("_")
    if arch not in _FORMER_ARCHS and rest.partition("_")[0] not in REGISTRY.former_tags:
        return name
    try:
        return to_name(parse_name(name))
    except ValueError:
        return name
