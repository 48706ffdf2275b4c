"""The content of a report. Plain values, which become JSON."""

from dataclasses import dataclass, field
from typing import Any

SCHEMA = "gemmill verify --report"
VERSION = 1
"""Of the schema: another one where a field changes its meaning or goes."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that runs the kernels."""

    name: str
    capability: str
    arch: str


@dataclass(frozen=True, kw_only=True)
class ReportedBuild:
    """The build whose kernels run."""

    build_id: str
    gemmill_version: str
    """Of a checkout with its commit, as 0.1.0+g1234567."""
    made_for: str
    emulated: bool
    selection: str
    variants: int
    not_compiled: tuple[dict[str, str], ...]
    """Names and errors."""
    compiled_in_seconds: float | None
    """None where the build was there before."""
    nvcc: str
    cutlass: str
    cutedsl: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The cases of one variant."""

    name: str
    cases: int | None
    """None where the process died in them."""
    wrong: int | None
    worst_fraction: float | None
    """Largest error as a fraction of its tolerance; 0 where results must be equal to the last bit."""
    fault: str = ""
    """The first failure in a sentence, or how the process died; empty where all is right."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One call under compute-sanitizer's memcheck."""

    name: str
    outcome: str
    """passed, reported, died or hung."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Time:
    """The variant that a call gets, timed."""

    op: str
    sizes: dict[str, int]
    name: str
    median_us: float | None
    least_us: float | None
    tflops: float | None
    gbps: float | None
    fault: str


@dataclass(kw_only=True)
class Content:
    """A report, as far as it is."""

    schema: str = SCHEMA
    version: int = VERSION
    created: str
    """UTC, ISO 8601."""
    complete: bool = False
    ok: bool = False
    """Whether it is complete and nothing is wrong."""
    gpu: Gpu
    machine: list[dict[str, str]]
    """The findings of `gemmill doctor` on Python, torch, driver and toolchain."""
    build: ReportedBuild | None = None
    verify: list[Verified] = field(default_factory=list)
    memcheck: list[Checked] = field(default_factory=list)
    memcheck_note: str = ""
    """The version of compute-sanitizer, or the reason why it did not run."""
    times: list[Time] = field(default_factory=list)
    times_note: str = ""
    """The reason why nothing was timed."""
    failures: list[str] = field(default_factory=list)
    """A sentence for everything that is wrong."""

    def public(self, places: Any) -> Any:
        """Its JSON, without names of users, machines and folders. `places` is a `Places`."""
        from dataclasses import asdict

        return places.hide(asdict(self))
