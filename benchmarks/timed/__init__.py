"""The timed calls of each family: a module of its name, whose `BENCHMARK` the program reads.

Workloads are the tuner's (`gemmill.tuner.workloads`), or in a family without a sweep of all its calls those of `timed/workload.py`. Such a
family has a folder: `calls.py` with kinds of calls and operands, `contenders.py` with who computes them.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build


class Workload(Protocol):
    """One kind of call at one size."""

    @property
    def kind(self) -> str:
        """The op's name."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """By name; the first is the number of rows."""

    @property
    def flops(self) -> float:
        """Multiplications and additions; 0 where memory alone counts."""

    @property
    def bytes(self) -> int:
        """The bytes that must be read and written, each once."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The random weights [N, K] for calls of a family, at which its choice is compared."""

    classes: tuple[str, ...]
    """Of calls, which are compared by default; all have sizes m, n and k."""
    kin: Callable[[str], Hashable]
    """The key of classes that share times, and so weights."""
    code_bytes: Callable[[str], float]
    """Of a weight, scales included."""
    steps: Callable[[str], tuple[int, int]]
    """Of which N and K are multiples."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """All that the program asks of a family."""

    add_options: Callable[[ArgumentParser], None]
    """Of its own."""
    workloads: Callable[[Namespace], list[Any]]
    """The requested ones, those that share operands together. Raises ValueError."""
    tiny: Callable[[Any], Any]
    """The same workload cut down for a dry run."""
    host_workload: Callable[[str], Any]
    """A kind's small workload, whose host time is taken."""
    warm_workload: Callable[[Any], Any]
    """A workload like this one that brings the clocks to where they stay."""
    maker: Callable[[torch.device, int], Any]
    """Makes operands on a device, rotated over so many bytes."""
    data: str
    """A description of the operands, for the reader of the results."""
    subject: Callable[[str, str], Any]
    """The contender of a name that calls the ops of a namespace."""
    also: Callable[[], Sequence[Any]] = tuple
    """Other ways of calling the subject: timed and shown, compared with nothing."""
    variants: Callable[[Build | None], Sequence[Any]] | None = None
    """Each variant pinned, of a build or in a dry run; None where one variant serves each call."""
    plausible: Callable[[Sequence[Any], Any], Sequence[Any]] = lambda variants, workload: variants
    """The variants worth timing on a workload."""
    facts: Callable[[Build], Mapping[str, Any]] = lambda build: {}
    """Further facts about a build."""
    drawing: Drawing | None = None
    """How the choice is compared at random shapes."""
    judged: tuple[str, ...] = ()
    """Kinds of calls at which the choice is compared by default where there is no `drawing`: `--draw SEED` draws them."""


def families() -> list[str]:
    """Names of the families of which something is timed."""
    return [family.name for family in REGISTRY.families if find_spec(f"timed.{family.name}") is not None]


def benchmark_of(family: str) -> Benchmark:
    """The timed calls of a family."""
    return import_module(f"timed.{family}").BENCHMARK
