"""Translation units: which sources compile together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from gemmill.build.files import digest
from gemmill.build.sources import Source, SourceKind
from gemmill.emit import EmittedFile, emit_unit
from gemmill.registry import REGISTRY


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Sources compiled by one process: into one object by nvcc, each into its own by the CuTe DSL."""

    sources: tuple[Source, ...]

    @property
    def kind(self) -> SourceKind:
        """All sources of a unit are of one kind."""
        return self.sources[0].kind

    @property
    def key(self) -> str:
        """Digest of everything but the included headers."""
        return digest([source.key for source in self.sources])

    @property
    def seconds(self) -> float:
        """CPU seconds that compiling it may take."""
        shared = max((REGISTRY.tagged(tag).unit_seconds for tag in self.tags), default=0.0)
        return shared + sum(source.seconds for source in self.sources)

    @property
    def tags(self) -> set[str]:
        """Of its variants."""
        return {source.tag for source in self.sources if source.is_variant}

    @property
    def fullness(self) -> Fraction:
        """The filled share of a unit, by the unit size of each variant's kernels: at most 1."""
        shares = (Fraction(1, REGISTRY.tagged(source.tag).unit_size) for source in self.sources if source.is_variant)
        return sum(shares, Fraction())

    @property
    def label(self) -> str:
        """Its name in a progress report."""
        first = self.sources[0].name
        return first if len(self.sources) == 1 else f"{first} and {len(self.sources) - 1} more"

    @property
    def file_name(self) -> str:
        """The name of the file for a C++ or CUDA compiler."""
        return f"unit_{self.key[:16]}" + (".cpp" if self.kind is SourceKind.BINDING else ".cu")

    @property
    def text(self) -> str:
        """The text of the file for a C++ or CUDA compiler."""
        return emit_unit([EmittedFile(path=source.path, text=source.text) for source in self.sources])


def partition(sources: Sequence[Source], jobs: int, dsl_jobs: int | None = None) -> list[Unit]:
    """Units, heaviest first.

    A unit has at most as many variants as its kernels declare. Sizes are such that `jobs` processes are equally busy to
    the end: a tag is in one unit if it takes no more than the share of one of them. Tags of nvcc that have one unit each
    share it, up to half of that share: headers take longer than most variants. Of the CuTe DSL `dsl_jobs` processes run at
    a time, by default `jobs`.
    """
    alone = [Unit(sources=(s,)) for s in sources if not s.is_variant]
    tags = sorted({s.tag for s in sources if s.is_variant})
    whole = [Unit(sources=tuple(s for s in sources if s.is_variant and s.tag == tag)) for tag in tags]
    total = sum(unit.seconds for unit in (*alone, *whole))
    shared: list[Unit] = []
    small: list[Unit] = []
    for unit in whole:
        processes = (dsl_jobs or jobs) if unit.kind is SourceKind.DSL else jobs
        parts = _shared_units(unit, processes, unit.seconds / total if total else 1.0)
        (small if len(parts) == 1 and unit.kind is SourceKind.VARIANT else shared).extend(parts)
    return sorted([*alone, *shared, *_joined(small, total / jobs / 2)], key=lambda unit: (-unit.seconds, unit.key))


def _joined(units: Sequence[Unit], most_seconds: float) -> list[Unit]:
    """Fewer units: each joins the first that has room and stays within `most_seconds`."""
    result: list[Unit] = []
    for unit in sorted(units, key=lambda unit: (-unit.seconds, unit.key)):
        for i, other in enumerate(result):
            joined = Unit(sources=(*other.sources, *unit.sources))
            if joined.fullness <= 1 and joined.seconds <= most_seconds:
                result[i] = joined
                break
        else:
            result.append(unit)
    return result


def _shared_units(whole: Unit, jobs: int, share: float) -> list[Unit]:
    """Units of a tag that has so large a share of the whole build."""
    count, largest = len(whole.sources), REGISTRY.tagged(whole.sources[0].tag).unit_size
    rounds = -(-count // (largest * jobs))
    groups: list[list[Source]] = [[] for _ in range(min(max(-(-count // largest), ceil(share * rounds * jobs)), count))]
    for source in sorted(whole.sources, key=lambda s: (-s.seconds, s.name)):
        # The heaviest first, each to the lightest group: at most one variant's difference at the end.
        open_groups = [group for group in groups if len(group) < largest]
        min(open_groups, key=lambda group: sum(s.seconds for s in group)).append(source)
    return [Unit(sources=tuple(sorted(group, key=lambda s: s.name))) for group in groups]


def split(unit: Unit, message: str) -> list[Unit]:
    """Smaller units, to find which source of a failed one is bad.

    Each source that the message names is a unit alone, the rest are one together. Where it names none, the unit splits
    into halves.
    """
    named = [s for s in unit.sources if re.search(rf"(?<!\w)(gemmill_)?{re.escape(s.name)}(?=\W|_kernel|$)", message)]
    rest = [s for s in unit.sources if s not in named]
    if not named:
        half = len(rest) // 2
        return [Unit(sources=tuple(rest[:half])), Unit(sources=tuple(rest[half:]))]
    return [Unit(sources=(s,)) for s in named] + ([Unit(sources=tuple(rest))] if rest else [])
