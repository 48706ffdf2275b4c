"""The numerics of a build's variants against the reference, on real tensors. One loop runs over entries and their
family's cases.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from gemmill.numerics.cases import Case, cases_of, cases_of_family
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.ops import load, use_variant
from gemmill.vocab import Arch


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of all cases of one variant, or of one op."""

    name: str
    cases: int
    failures: tuple[str, ...]
    """A sentence for each case that failed."""
    worst_fraction: float
    """Largest error as a fraction of its tolerance; 0 where results must be equal to the last bit."""


def verify_variants(build: Build, names: frozenset[str] | None = None) -> Iterator[Verdict]:
    """Verify every variant of a loaded build that this GPU runs (those in `names`, if given), each pinned, on the
    current GPU.
    """
    if torch.cuda.get_device_capability() not in Arch(build.manifest.runs_on).capabilities:
        return
    for entry in build.manifest.entries:
        if names is None or entry.name in names:
            with use_variant(entry.name):
                found = verdict(entry.name, cases_of(entry.config).of_config(entry.config), "cuda")
            yield found


def verify_ops() -> Iterator[Verdict]:
    """Verify each op once for each kind of operands. On the current GPU it has the variant that selection gives, else
    the CPU reference.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        load()
    for family in REGISTRY.families:
        for name, case in cases_of_family(family).once():
            yield verdict(name, [case], device)


def device_words() -> str:
    """The device on which the cases run, in words."""
    if torch.cuda.is_available():
        return f"on {torch.cuda.get_device_name()}"
    return "with the CPU reference: there is no GPU that torch can use, so no kernel was run"


def verdict(name: str, cases: Iterable[Case], device: str) -> Verdict:
    """Run cases. A call that raises is a failure."""
    count, failures, worst = 0, [], 0.0
    for case in cases:
        count += 1
        try:
            outcome = case.run(device)
        except RuntimeError as error:
            failures.append(f"{case}: {str(error).splitlines()[0]}")
            continue
        worst = max(worst, outcome.worst_fraction)
        if outcome.report:
            failures.append(f"{case}: {outcome.report}")
    return Verdict(name=name, cases=count, failures=tuple(failures), worst_fraction=worst)
