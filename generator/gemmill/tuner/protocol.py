"""Values that cross between a sweep and the process that runs candidates, as JSON."""

from dataclasses import dataclass
from typing import Any

from gemmill.tuner.workloads import Workload, workload_of

_OF_SCHEMA_1 = ("op", "m", "n", "k")
PEER = "peer"
"""The word that stands in the place of a peer's build."""


class TuneError(RuntimeError):
    """A sweep that cannot be made; the text is one sentence."""


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """One way to compute workloads: a variant of a build, or a peer."""

    name: str
    build: str
    """Folder of the build, or PEER."""

    @property
    def is_peer(self) -> bool:
        """Whether the candidate is shown and never chosen."""
        return self.build == PEER


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The arguments of a measuring process."""

    builds: tuple[str, ...]
    """Folders of the builds to load; empty in a dry run without one."""
    dry_run: bool = False
    """Whether the reference runs on the CPU in the place of the variants, with invented times."""
    vllm_library: str | None = None


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def workload_to_json(workload: Workload) -> dict[str, Any]:
    """A workload's op and sizes, by name."""
    return {"op": workload.op} | workload.sizes


def workload_from_json(values: Any) -> Workload:
    """The workload of such an object, or of [op, m, n, k] as journals of schema 1 have it.

    Raises ValueError, TypeError or KeyError where it is none.
    """
    told = dict(zip(_OF_SCHEMA_1, values, strict=True)) if isinstance(values, list) else dict(values)
    op = told.pop("op")
    if not all(type(size) is int and size > 0 for size in told.values()):
        raise ValueError(f"{values!r}: sizes must be positive whole numbers")
    return workload_of(op, told)
