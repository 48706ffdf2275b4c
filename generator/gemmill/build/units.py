"""Translation units: which sources are compiled together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemmill.build.files import digest
from gemmill.build.sources import DSL_UNIT_SECONDS, UNIT_SECONDS, Source, SourceKind
from gemmill.emit import EmittedFile, emit_unit
from gemmill.space.family import Family

LARGEST = {Family.SCALED_MM: 8, Family.QUANT: 12}
"""Variants in a unit. Headers and host passes are a third of a lone GEMM's time; eight share them well, and a
unit of more would keep one core busy after the others have finished. Quantisation kernels compile in a second each."""
LARGEST_OF_DSL = 12
"""Variants that one process compiles with the CuTe DSL, whose import takes as long as one or two of them."""


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
        shares = {SourceKind.BINDING: 0.0, SourceKind.DSL: DSL_UNIT_SECONDS}
        shared = shares.get(self.kind, UNIT_SECONDS[self.sources[0].family])
        return shared + sum(source.seconds for source in self.sources)

    @property
    def label(self) -> str:
        """What to call it in a progress report."""
        first = self.sources[0].name
        return first if len(self.sources) == 1 else f"{first} and {len(self.sources) - 1} more"

    @property
    def file_name(self) -> str:
        """The file that a C++ or CUDA compiler is given."""
        return f"unit_{self.key[:16]}" + (".cpp" if self.kind is SourceKind.BINDING else ".cu")

    @property
    def text(self) -> str:
        """The text of that file."""
        return emit_unit([EmittedFile(path=source.path, text=source.text) for source in self.sources])


def partition(sources: Sequence[Source], jobs: int, dsl_jobs: int | None = None) -> list[Unit]:
    """Units of at most LARGEST variants of one family, as many as keep `jobs` processes equally busy to the end; heaviest
    first. Of the CuTe DSL `dsl_jobs` run at a time, by default as many."""
    units = [Unit(sources=(s,)) for s in sources if not s.is_variant]
    units += _shared_units([s for s in sources if s.kind is SourceKind.DSL], dsl_jobs or jobs, LARGEST_OF_DSL)
    for family in Family:
        variants = [s for s in sources if s.kind is SourceKind.VARIANT and s.family is family]
        units += _shared_units(variants, jobs, LARGEST[family])
    return sorted(units, key=lambda unit: (-unit.seconds, unit.key))


def _shared_units(variants: Sequence[Source], jobs: int, largest: int) -> list[Unit]:
    rounds = -(-len(variants) // (largest * jobs))
    groups: list[list[Source]] = [[] for _ in range(min(rounds * jobs, len(variants)))]
    for source in sorted(variants, key=lambda s: (-s.seconds, s.name)):
        # The heaviest first, each to the lightest group: at most one variant's difference at the end.
        open_groups = [group for group in groups if len(group) < largest]
        min(open_groups, key=lambda group: sum(s.seconds for s in group)).append(source)
    return [Unit(sources=tuple(sorted(group, key=lambda s: s.name))) for group in groups]


def split(unit: Unit, message: str) -> list[Unit]:
    """Smaller units to find which source of a failed one is bad: those that the message names alone, the rest together."""
    named = [s for s in unit.sources if re.search(rf"(?<!\w)(gemmill_)?{re.escape(s.name)}(?=\W|_kernel|$)", message)]
    rest = [s for s in unit.sources if s not in named]
    if not named:
        half = len(rest) // 2
        return [Unit(sources=tuple(rest[:half])), Unit(sources=tuple(rest[half:]))]
    return [Unit(sources=(s,)) for s in named] + ([Unit(sources=tuple(rest))] if rest else [])
