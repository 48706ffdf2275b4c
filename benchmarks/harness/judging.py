"""A shape judged: the choice beside the fastest loaded variants and the peers, in one run of interleaved rounds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gemmill.runtime.library import Build
from gemmill.tuner.timing import shuffled
from gemmill.tuner.workloads import Workload
from harness.contenders import SM_COUNT
from harness.explained import explained
from harness.field import Contest
from harness.measuring import Measurement, measure
from harness.results import SUBJECT, sample_record
from harness.sieve import Candidate, QuickTimer, Sieve, Sieved, Variants, chosen_for, sieved
from harness.statistics import paired_ratio, sample
from harness.timers import Rounds, Timer

CAREFUL = Rounds(rounds=5, short=True)
FINALISTS = 3
"""The fastest variants of the sieve, which are timed again next to the choice."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """State of a run."""

    field: Contest
    variants: Variants | None
    """The loaded ones; None where each call is asked which variants take it."""
    maker: Any
    """Makes operands of a workload."""
    timer: Timer
    quick: QuickTimer
    sieve: Sieve
    only: frozenset[str] = frozenset()
    """Names of the variants that fit --only."""

    def shape(self, workload: Workload) -> dict[str, Any]:
        """Time a shape: the variants quickly, then the choice, the fastest and the peers."""
        operands = self.maker.make(workload)
        variants, choice, trust = self.asked(operands)
        guesses = {name: us for name, us in variants.guesses_us(workload).items() if name in self.only}
        also = chosen_for(guesses, workload, self.sieve) if guesses else []
        quick = sieved(operands, variants, self.quick, self.sieve, [*also, *filter(None, [choice])])
        fastest = [name for name in quick.us if name != choice][:FINALISTS]
        fitting = [name for name in quick.us if name in self.only][:FINALISTS]
        finalists = [variant for variant in variants.pinned if variant.name in {*fastest, *fitting}]
        found = measure(operands, [self.field.subject, *finalists, *self.field.peers], self.timer, CAREFUL)
        return shape_record(found, quick, choice, trust, fastest, self.field) | self.comparison(found, finalists)

    def asked(self, operands: Any) -> tuple[Variants, str | None, str]:
        """The variants that take a call, the choice among them, and the evidence for it."""
        if self.variants is not None:
            return self.variants, *choice_of(self.field.loaded, operands.workload)
        if self.field.loaded is None:
            return Variants.of([], None), None, "model"
        answer = explained(self.field.subject, operands)
        return answer.variants, answer.choice, answer.trust.name.lower()

    def comparison(self, found: Measurement, finalists: Sequence[Candidate]) -> dict[str, Any]:
        """What the variants that fit --only lose; nothing without it."""
        names = [SUBJECT, *(variant.name for variant in finalists)]
        return {"only": only_record(found, names, self.only)} if self.only else {}

    def ladder(self, rungs: Sequence[Workload]) -> dict[str, Any]:
        """Time gemmill's choice at every M of the same weights, rounds alternating between them."""
        prepared = {}
        for workload in rungs:
            operands = self.maker.make(workload)
            prepared[workload] = self.field.subject.prepare(operands, self.timer, CAREFUL.calls(workload))
        rounds: dict[Workload, list[float]] = {workload: [] for workload in rungs}
        by_m = {str(workload.m): workload for workload in rungs}
        for turn in range(CAREFUL.rounds):
            for m in shuffled(list(by_m), turn):
                rounds[by_m[m]].append(prepared[by_m[m]].round())
        for ready in prepared.values():
            ready.close()
        found = [
            {"m": workload.m, "choice": choice_of(self.field.loaded, workload)[0], "us": round(sample(us).median_us, 3)}
            for workload, us in rounds.items()
        ]
        return {"kind": "ladder", "op": rungs[0].kind, "n": rungs[0].n, "k": rungs[0].k, "rungs": found}


def choice_of(build: Build | None, workload: Workload) -> tuple[str | None, str]:
    """The variant that the extension chooses, and the evidence for it."""
    if build is None:
        return None, "model"
    row, trust = build.choose(workload.call, SM_COUNT)
    return (build.table.entries[row].name if row >= 0 else None), trust.name.lower()


def shape_record(
    found: Measurement, quick: Sieved, choice: str | None, trust: str, finalists: Sequence[str], field: Contest
) -> dict[str, Any]:
    """A shape's row: the ratio to the best peer, the regret against the fastest variant, and all times."""
    samples, workload = found.samples, found.workload
    subject = samples.get(SUBJECT)
    timed = [name for name in finalists if name in samples]
    peers = [peer.name for peer in field.peers if peer.complete and peer.name in samples]
    ratios = {} if subject is None else {name: round(paired_ratio(samples[name], subject), 4) for name in peers}
    slower = {} if subject is None else {name: paired_ratio(subject, samples[name]) - 1 for name in timed}
    best = min(ratios, key=ratios.__getitem__, default=None)
    fastest = max(slower, key=slower.__getitem__, default=None)
    regret = None if subject is None or not quick.us else max(0.0, slower[fastest] if fastest else 0.0)
    return {
        "kind": "shape",
        "op": workload.kind,
        **workload.sizes,
        "call": str(workload),
        "sizes": list(workload.sizes),
        "trust": trust,
        "counted": field.benchmark.drawing is None or trust == "model",
        "choice": choice,
        "us": None if subject is None else round(subject.median_us, 3),
        "best_peer": best,
        "ratio": None if best is None else ratios[best],
        "ratios": ratios,
        "fastest": fastest if regret else choice,
        "regret": None if regret is None else round(regret, 4),
        "contenders": {name: sample_record(taken) for name, taken in samples.items()},
        "sieved_us": {name: float(f"{us:.4g}") for name, us in quick.us.items()},
        "failures": found.failures | dict(quick.failures),
    }


def only_record(found: Measurement, names: Sequence[str], only: Collection[str]) -> dict[str, Any] | None:
    """The fastest of some of the variants beside the fastest of all; None where none of them was timed."""
    timed = {name: found.samples[name] for name in names if name in found.samples}
    fitting = [name for name in timed if name in only]
    if not fitting:
        return None
    fastest, best = (min(of, key=lambda name: timed[name].median_us) for of in (fitting, list(timed)))
    loss = max(0.0, paired_ratio(timed[fastest], timed[best]) - 1)
    return {"variant": fastest, "fastest": best, "loss": round(loss, 4)}
