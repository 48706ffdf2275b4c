"""Times for the model's fit: many random shapes, a part of the variants each, few rounds, no peers, no checks.

    python benchmarks/samples.py --seed 1 --limit-s 420            # as many as the time suffices for
    python benchmarks/samples.py --seed 1 --classes bf16 --sieve 24+8
    python benchmarks/samples.py --seed 1 --family blockscaled --least-k 14336 --limit-s 60
    python benchmarks/samples.py --seed 1 --dry-run --limit-s 5 --out-dir /tmp/dry

Weights are log-uniform, each at --rows values of M, one in each equal part of the logarithm, every other just above a whole
tile. Of most shapes the variants that the model puts first and some others at random are timed, of every --all-every th all.
Writes a journal as `gemmill tune` does and packs it: `tools/fit_model.py` reads it. The same command goes on where an
earlier one ended; after a shape that hung take another --seed.
"""

import argparse
import faulthandler
import lzma
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gemmill.numerics.measured import ROTATED_BYTES
from gemmill.runtime.library import Build
from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.device import Monitor, driver_version, now
from gemmill.tuner.journal import Entry, Journal, JournalError
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.workloads import Workload, tiny
from harness import devices
from harness.contenders import FieldError, LocalContender
from harness.drawing import classes_of, designed, drawings
from harness.field import Contest, make_field
from harness.judging import choice_of
from harness.sieve import QuickDry, QuickGraphs, QuickTimer, Sieve, Variants, sieved
from harness.timers import of_this_gpu
from judge import FAMILY, RESULTS
from timed import benchmark_of

DRY_ROTATED_BYTES = 4096
PROGRESS_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """State of a run."""

    field: Contest
    variants: Variants
    maker: Any
    """Makes operands of a workload."""
    quick: QuickTimer
    sieve: Sieve
    all_every: int
    """Of so many shapes, one is timed with all variants; 0 for none."""

    def sample(self, workload: Workload, number: int) -> tuple[TaskOutcome, str | None]:
        """Time a shape, the `number`th of all. Returns the outcome and today's choice."""
        begun = time.perf_counter()
        choice = choice_of(self.field.loaded, workload)[0]
        whole = self.all_every > 0 and number % self.all_every == 0
        sieve = replace(self.sieve, best=None) if whole else self.sieve
        found = sieved(self.maker.make(workload), self.variants, self.quick, sieve, [choice] if choice else [])
        outcome = TaskOutcome(
            workload=workload,
            rounds_us=found.rounds_us,
            findings={name: Finding(fault=Fault.REFUSED, detail=text) for name, text in found.failures.items()},
            builds=dict.fromkeys(found.rounds_us, build_id(self.field.loaded)),
            seconds=time.perf_counter() - begun,
        )
        return outcome, choice


def build_id(build: Build | None) -> str:
    """Of a loaded build."""
    return "none" if build is None else build.build_id


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where nothing was timed, 2 where this machine or a file is not fit."""
    begun = time.perf_counter()
    options = parse(arguments)
    if not (options.dry_run or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    path = options.out_dir / f"{options.name}.jsonl"
    try:
        sampler = prepared(options)
        with Journal(path, setup_of(options, sampler)) as journal, of_this_gpu() as monitor:
            run_until(begun + options.limit_s, sampler, journal, options, monitor)
            samples = sum(len(entry.outcome.rounds_us) for entry in journal.record.entries.values())
            shapes = len(journal.record.entries)
    except (FieldError, JournalError) as error:
        print(error, file=sys.stderr)
        return 2
    packed = path.with_name(f"{path.name}.xz")
    packed.write_bytes(lzma.compress(path.read_bytes()))
    seconds = time.perf_counter() - begun
    print(f"{samples} times of {shapes} shapes in {seconds:.0f} s; written: {packed}, {packed.stat().st_size} bytes")
    return 0 if samples else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of the shapes")
    parser.add_argument("--family", choices=sorted(drawings()), default=FAMILY, help="whose calls are timed")
    parser.add_argument("--classes", help="of calls of the family, with commas")
    parser.add_argument("--rows", type=int, default=5, help="values of M for the same weights")
    parser.add_argument("--least-k", type=int, default=0, help="of the weights")
    parser.add_argument("--sieve", default="16+12", help="B+R: the model's B best variants, and R others at random")
    parser.add_argument(
        "--all-every", type=int, default=12, help="time all variants at one of so many shapes; 0 for none"
    )
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--limit-s", type=float, required=True, help="begin nothing after so many seconds")
    parser.add_argument("--shape-s", type=float, default=60.0, help="end the process where one shape takes longer")
    parser.add_argument("--most", type=int, default=1_000_000, help="shapes")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", help="file name of the journal, without suffix")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    options.classes = options.classes or ",".join(drawings()[options.family].classes)
    known = classes_of(options.family)
    if unknown := [name for name in options.classes.split(",") if name not in known]:
        parser.error(f"--classes {unknown[0]!r} is none of {', '.join(known)}")
    best, _, others = options.sieve.partition("+")
    if not (best.isdigit() and others.isdigit()):
        parser.error(f"--sieve {options.sieve!r} is not two numbers such as 16+12")
    options.name = options.name or f"samples-{options.seed}-{now()[:10]}"
    return options


def prepared(options: argparse.Namespace) -> Sampler:
    """All that is loaded. Raises FieldError."""
    asked = {"also": "", "batch_invariant": False, "by_backend": False, "alone": False, "variants": True, "match": ""}
    asked |= {"vllm_so": None, "vllm_apart": False, "deep_gemm": None, "sglang": None, "humming": None}
    benchmark = benchmark_of(options.family)
    field = make_field(benchmark, argparse.Namespace(**{**vars(options), **asked}))
    table = None if field.loaded is None else field.loaded.table
    dry = options.dry_run
    best, _, others = options.sieve.partition("+")
    return Sampler(
        field=field,
        variants=Variants.of([v for v in field.variants if isinstance(v, LocalContender)], table),
        maker=benchmark.maker(torch.device("cpu" if dry else "cuda"), DRY_ROTATED_BYTES if dry else ROTATED_BYTES),
        quick=QuickDry() if dry else QuickGraphs(),
        sieve=Sieve(best=int(best), others=int(others), seed=options.seed),
        all_every=options.all_every,
    )


def setup_of(options: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """The journal's first line."""
    return {
        "program": "benchmarks/samples.py",
        "seed": options.seed,
        "classes": options.classes,
        "rows": options.rows,
        "least_k": options.least_k,
        "variants": f"{sampler.sieve}; all of every {options.all_every}th shape",
        "dry_run": options.dry_run,
        "build": build_id(sampler.field.loaded),
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "environment": devices.environment(),
        "driver": driver_version(),
    }


def run_until(end: float, sampler: Sampler, journal: Journal, options: argparse.Namespace, monitor: Monitor) -> None:
    """Sample the shapes that the journal lacks."""
    told = time.perf_counter()
    for number, workload in enumerate(workloads(options)):
        if time.perf_counter() > end or number >= options.most:
            return
        if (workload, 0, 0) in journal.record.entries:
            continue
        faulthandler.dump_traceback_later(options.shape_s, exit=True, file=sys.__stderr__)
        outcome, choice = sampler.sample(workload, number)
        faulthandler.cancel_dump_traceback_later()
        # Clocks so far: the last line's are those of the whole run.
        outcome = replace(outcome, state=monitor.summary() if number % 50 == 0 else {})
        journal.outcome(Entry(outcome=outcome, repeat=0, wave=0, present=choice, date=now()))
        if time.perf_counter() - told > PROGRESS_S:
            told = time.perf_counter()
            print(
                f"{number + 1} shapes, {workload}: {len(outcome.rounds_us)} variants, {outcome.seconds:.2f} s",
                flush=True,
            )


def workloads(options: argparse.Namespace) -> Iterator[Workload]:
    """Without end, classes taking turns with weights."""
    of_classes = [designed(name, options.seed, options.rows, options.least_k) for name in options.classes.split(",")]
    while True:
        for weights in of_classes:
            for workload in next(weights):
                yield tiny(workload) if options.dry_run else workload


if __name__ == "__main__":
    sys.exit(main())
