"""All that a journal of a sweep holds, in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmill.tuner.checking import Finding
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.workloads import Workload

SCHEMA_VERSION = 3
"""The version of journals that this module writes."""
READ_VERSIONS = (1, 2, SCHEMA_VERSION)


class JournalError(RuntimeError):
    """A journal that this sweep cannot go on from; the text is one sentence."""


Key = tuple[Workload, int, int]
"""Workload, repeat and wave: the key of an outcome."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An outcome with the inputs of the decision on it."""

    outcome: TaskOutcome
    repeat: int
    wave: int
    """The part of the candidates, where they were compiled meanwhile; 0 else."""
    present: str | None
    date: str


@dataclass(frozen=True, kw_only=True)
class MeasuredBuild:
    """The facts of a measured build in a table."""

    build_id: str
    arch: str
    nvcc: str
    """The version of its CUDA compiler; empty if unknown."""
    digests: Mapping[str, tuple[str, str]]
    """By variant, the digests of its sources and of its machine code, as rows of tables keep them."""


@dataclass(kw_only=True)
class Record:
    """All that a journal holds."""

    setup: dict[str, Any]
    begun_by: tuple[str, str] = ("", "")
    """The command that began it and the commit of its checkout; empty where an older journal or no checkout says neither."""
    entries: dict[Key, Entry] = field(default_factory=dict)
    faults: dict[Workload, dict[str, Finding]] = field(default_factory=dict)
    builds: dict[str, MeasuredBuild] = field(default_factory=dict)
    """By folder. A journal before schema version 3 says nothing of them."""
