"""What crosses between a sweep and the process that runs candidates: plain values, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmill.tune.problems import Op, Problem

PEER = "peer"
"""In the place of a build: what a user would call instead of gemmill."""


class TuneError(RuntimeError):
    """A sweep that cannot be made; the text is one sentence."""


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """One way to compute problems: a variant of a build, or a peer."""

    name: str
    build: str
    """Folder of the build, or PEER."""

    @property
    def is_peer(self) -> bool:
        """Whether it is shown and never chosen."""
        return self.build == PEER


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a measuring process is started with."""

    builds: tuple[str, ...]
    """Folders of the builds to load; empty in a dry run without one."""
    dry_run: bool = False
    """On the CPU, with the reference in the place of the variants and invented times."""
    device: int | None = None
    """Index of the GPU that the process sees, None for the first that this process sees."""
    faults: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Faults to commit on purpose, by candidate name: tests of the sweep itself."""
    seed: int = 0
    """Of invented times: another seed is another run."""
    vllm_library: str | None = None


def problem_to_json(problem: Problem) -> list[Any]:
    """[op, m, n, k]."""
    return [problem.op.value, problem.m, problem.n, problem.k]


def problem_from_json(values: list[Any]) -> Problem:
    """The problem of [op, m, n, k]. Raises ValueError or TypeError where it is none."""
    op, m, n, k = values
    if not all(type(size) is int and size > 0 for size in (m, n, k)):
        raise ValueError(f"{values!r}: sizes must be positive whole numbers")
    return Problem(op=Op(op), m=m, n=n, k=k)
