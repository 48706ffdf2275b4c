"""The options of a build, its plan, its result and its observer."""

from dataclasses import dataclass
from pathlib import Path

from gemmill import settings
from gemmill.build.errors import BuildError
from gemmill.build.scheduler import Scheduler
from gemmill.build.sources import Source
from gemmill.build.units import Unit
from gemmill.family import Config
from gemmill.locations import kernels_dir
from gemmill.manifest import Manifest, RejectedEntry
from gemmill.vocab import Arch

JOB_MEMORY_BYTES = 5 << 30
"""Bytes that one nvcc may need. Units of CUTLASS variants took 3.5 GiB for sm90a, 4.2 GiB for sm120f (nvcc 13.0)."""
DSL_JOB_MEMORY_BYTES = 1 << 30
"""Bytes that one process of the CuTe DSL may need."""
_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build."""

    home: Path | None = None
    """The folder of builds/ and cache/; None for `settings.home()`."""
    jobs: int | None = None
    """Compiler processes at a time. With None GEMMILL_JOBS decides, else cores and memory do."""
    scheduler: Scheduler | None = None
    """The scheduler of a Dask cluster that compiles; None for this machine."""
    max_size: int | None = None
    """Bytes that an extension may have: the build does not publish a larger one."""
    retry_failed: bool = False
    """Try variants again that the ledger knows as failed."""
    kernels: Path | None = None
    """The folder of hand-written sources; None for gemmill's own."""
    emulate: bool = False
    """Compile for `arch.emulated_on`, with emulated instructions."""
    own_host_code: bool = False
    """Launch kernels of the CuTe DSL by gemmill's host code, and link nothing of the DSL."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs={self.jobs}: at least 1 is needed")
        if self.max_size is not None and self.max_size < 1:
            raise ValueError(f"max_size={self.max_size}: it is a number of bytes, at least 1")

    @property
    def home_dir(self) -> Path:
        """The folder of builds and cache."""
        return (self.home or settings.home()).absolute()

    @property
    def kernels_folder(self) -> Path:
        """The folder of hand-written sources."""
        return (self.kernels or kernels_dir()).absolute()

    @property
    def job_count(self) -> int:
        """nvcc processes at a time. Raises BuildError."""
        return self._asked_jobs or automatic_jobs(JOB_MEMORY_BYTES)

    @property
    def dsl_job_count(self) -> int:
        """Processes of the CuTe DSL at a time, while nothing else compiles. Raises BuildError."""
        return self._asked_jobs or automatic_jobs(DSL_JOB_MEMORY_BYTES)

    @property
    def mixed_job_count(self) -> int:
        """Processes at a time where both compile: `job_count` of nvcc, and as many of the DSL as the memory left allows.

        Raises BuildError.
        """
        if self._asked_jobs:
            return self._asked_jobs
        compilers = self.job_count
        return compilers + automatic_jobs(DSL_JOB_MEMORY_BYTES, beside=compilers, least=0)

    @property
    def _asked_jobs(self) -> int | None:
        try:
            return self.jobs or settings.jobs()
        except ValueError as error:
            raise BuildError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The outcome that a build would have."""

    selection: str
    arch: Arch
    configs: tuple[Config, ...]
    """Every variant of the selection, also those that share a kernel."""
    kernels: tuple[Source, ...]
    """The kernels to have, one for each different machine code."""
    units: tuple[Unit, ...]
    """The units that a build would compile."""
    cached: tuple[str, ...]
    """Names of kernels and hand-written files whose objects are in the cache."""
    known_bad: tuple[RejectedEntry, ...]
    """Kernels that the ledger knows as failed."""
    jobs: int
    estimated_cpu_seconds: float
    estimated_bytes: int
    """Bytes of the extension."""
    without_toolchain: str = ""
    """Why the search found no toolchain, and so nothing in the cache. The build would end with this text."""


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A build that is in place."""

    folder: Path
    manifest: Manifest
    compile_seconds: float
    """Wall time from the call to the last object."""
    reused: bool
    """Whether the same build was there before."""
    remembered: int = 0
    """Variants that a build skips, since they did not compile in an earlier one."""

    @property
    def rejected(self) -> tuple[RejectedEntry, ...]:
        """Variants that did not compile."""
        return self.manifest.rejected


class BuildObserver:
    """An observer follows a build. Weights are estimated CPU seconds."""

    def started(self, total_weight: float) -> None:
        """Compilation begins. The build calls this again, with a larger total, where it splits a failed unit."""

    def unit_done(self, label: str, weight: float, ok: bool) -> None:
        """A unit has been compiled, or has failed."""

    def linking(self) -> None:
        """All objects are there."""

    def finished(self, result: BuildResult) -> None:
        """The build is in place."""


def automatic_jobs(memory: int, *, beside: int = 0, least: int = 1) -> int:
    """Processes of `memory` bytes that cores and free memory allow next to `beside` processes of nvcc; at least
    `least`.
    """
    import psutil

    cores = len(psutil.Process().cpu_affinity()) - beside
    return max(least, min(cores, (free_memory() - beside * JOB_MEMORY_BYTES) // memory))


def free_memory() -> int:
    """Bytes that new processes can have: those free on the machine, or less where a control group sets a limit.

    psutil does not know of control groups.
    """
    import psutil

    free: int = psutil.virtual_memory().available
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    return free if limit is None or used is None else min(free, limit - used)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
