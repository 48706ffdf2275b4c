"""The only place where a kernel's name is made, and read back.

A name is a C identifier: architecture, tag of its kernels, and the fields that its family spells (`names.py` there), joined
by `_`.
"""

import hashlib
import re

from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.vocab import Arch


def to_name(config: Config) -> str:
    """The name of a config; different configs have different names."""
    return "_".join([config.arch, config.tag, *REGISTRY.kernels_of(config).to_fields(config)])


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
    """The config whose name this is. Raises ValueError, naming the field that cannot be read."""
    try:
        config = _parse(name.split("_"))
    except ValueError as error:
        raise ValueError(f"{name!r} is not a kernel name: {error}") from None
    if to_name(config) != name:
        raise ValueError(f"{name!r} is not a kernel name: it would be written {to_name(config)!r}")
    return config


def _parse(fields: list[str]) -> Config:
    if len(fields) < 2:
        raise ValueError("it has no architecture and tag")
    arch, tag, *rest = fields
    config: Config = REGISTRY.tagged(tag).from_fields(Arch(arch), tag, rest)
    return config
