"""The contenders of one run: gemmill, the variants of a sweep, the peers that this machine has."""

from argparse import Namespace
from dataclasses import dataclass

import gemmill
from gemmill.manifest import ManifestError
from gemmill.runtime.library import Build
from gemmill.tuner.protocol import first_line
from harness.contenders import BatchInvariantContender, Contender, FieldError
from harness.results import SUBJECT
from peers import PEERS
from timed import Benchmark, Workload


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Who runs."""

    benchmark: Benchmark
    subject: Contender
    also: tuple[Contender, ...]
    """Other builds and other ways of calling the subject: timed and shown, compared with nothing."""
    variants: tuple[Contender, ...]
    peers: tuple[Contender, ...]
    loaded: Build | None
    """The build that is timed; None where the reference stands in for it."""
    notes: tuple[str, ...] = ()
    """Sentences for the record about unexpected conditions."""

    @property
    def build(self) -> dict[str, object] | None:
        """Which build the subject is, for the record."""
        if self.loaded is None:
            return None
        manifest = self.loaded.manifest
        facts = {"id": manifest.build_id, "selection": manifest.selection, "arch": manifest.arch}
        return facts | {"variants": len(manifest.entries)}

    @property
    def all(self) -> list[Contender]:
        return [self.subject, *self.also, *self.variants, *self.peers]

    def contenders(self, workload: Workload) -> list[Contender]:
        """Those worth timing on a workload."""
        return [self.subject, *self.also, *self.benchmark.plausible(self.variants, workload), *self.peers]


def make_field(benchmark: Benchmark, options: Namespace) -> Contest:
    """Load the sides to time. Raises FieldError."""
    notes: list[str] = []
    peers = [found for peer in PEERS for found in peer.contenders(options.family, options, notes)]
    sweep = options.variants or options.by_backend
    also, loaded = [], None
    try:
        for build in filter(None, options.also.split(",")):
            other = gemmill.load(build).build_id
            also.append(benchmark.subject(f"gemmill_{other}", f"build {other}"))
        loaded = gemmill.load(options.build)
        also += [] if sweep or options.alone else benchmark.also()
    except (OSError, RuntimeError, ManifestError) as error:
        if not options.dry_run:
            raise FieldError(f"there is no build to time: {first_line(error)}") from None
        notes.append(f"gemmill's reference stands in for it: {first_line(error)}")
    subject = benchmark.subject("gemmill", SUBJECT)  # without a build its ops run the reference on a CPU
    if options.batch_invariant:
        also.append(BatchInvariantContender(name=f"{SUBJECT} batch-invariant", subject=subject))
    variants = [v for v in benchmark.variants(loaded) if options.match in v.name] if sweep else []
    if sweep and not variants:
        raise FieldError(f"no loaded variant has {options.match!r} in its name")
    return Contest(
        benchmark=benchmark,
        subject=subject,
        also=tuple(also),
        variants=tuple(variants),
        peers=tuple(peers),
        loaded=loaded,
        notes=tuple(notes),
    )
