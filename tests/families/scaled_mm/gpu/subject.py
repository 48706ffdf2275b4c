"""The subject of the tests: the loaded build, or its stand-in."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

import gemmill
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.cases.calls import Call
from gemmill.manifest import KernelEntry


class Subject(Protocol):
    """Something that offers the ops."""

    entries: Sequence[KernelEntry]

    def use_variant(self, name: str) -> AbstractContextManager:
        """Pin a variant."""
        ...

    def run(self, call: Call, variant: str | None = None) -> None:
        """Make a call through the op's overload, pinned if a variant is named."""
        ...


class Gemmill:
    """The loaded build."""

    def __init__(self) -> None:
        self.entries = tuple(entry for entry in gemmill.variants() if entry.family == scaled_mm.NAME)

    def use_variant(self, name: str) -> AbstractContextManager:
        return gemmill.use_variant(name)

    def run(self, call: Call, variant: str | None = None) -> None:
        op = getattr(torch.ops.gemmill, call.spec.op).default
        if variant is None:
            op(*call.arguments)
            return
        with gemmill.use_variant(variant):
            op(*call.arguments)
