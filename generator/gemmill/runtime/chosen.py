"""The choices of this process: logged as they happen, and counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemmill.family import ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust
from gemmill.runtime.library import Build
from gemmill.runtime.notices import LOG
from gemmill.runtime.select import Noted

MOST_TOLD = 10_000
"""The most shapes that a process logs."""


class ChoiceLog:
    """Logs each shape's choice once for each bucket of its rows, at level INFO."""

    least_trust = Trust.EXACT

    def __init__(self) -> None:
        self._told: set[tuple[ShapedCall, str]] = set()

    def hear(self, noted: Sequence[Noted]) -> bool:
        """Log new choices. Returns whether the log wants more."""
        for choice in noted:
            shape = _bucketed(choice.call), choice.variant
            if shape not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(shape)
                LOG.info("%s", _sentence(choice))
        return len(self._told) < MOST_TOLD


def _bucketed(call: ShapedCall) -> ShapedCall:
    """The call of its bucket's size: calls between have the same choice, or one that the log has under its variant."""
    tuning = REGISTRY.tunings[call.family]
    sizes = tuning.named(call.sizes)
    sizes |= {name: tuning.reach.bucket(size) for name, size in sizes.items() if name == tuning.bucketed}
    return replace(call, sizes=tuple(sizes.values()))


def _sentence(noted: Noted) -> str:
    tuning = REGISTRY.tunings[noted.call.family]
    sizes = tuning.named(noted.call.sizes)
    shape = f"{' x '.join(name.upper() for name in sizes)} of {' x '.join(map(str, sizes.values()))}"
    return f"{tuning.describe(noted.call.call_class)}, {shape}: {noted.variant} ({_because(noted)})"


def _because(noted: Noted) -> str:
    if noted.trust is Trust.EXACT:
        return "measured there"
    way_out = "GEMMILL_RECORD_MISSES=FILE notes such shapes, `gemmill tune --misses FILE` measures them"
    basis = (
        "measured near there"
        if noted.trust is Trust.NEAREST
        else "by the model: no variant of the build was measured there"
    )
    measurable = REGISTRY.tunings[noted.call.family].measured_as(noted.call) is not None
    return f"{basis}; {way_out}" if measurable else basis


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """How often a variant was chosen for calls of a class."""

    build: str
    """The id of the build."""
    variant: str
    ops: tuple[str, ...]
    """The ops that have such calls."""
    computes: str
    """The class of calls, in words."""
    trust: Trust
    """EXACT, NEAREST or MODEL."""
    times: int
    """The number of choices.

    A thread chooses at the first call of a shape and alignments on a kind of GPU, and remembers 512 of them. A repeated
    call whose choice it remembers does not count, nor does one of a pinned variant.
    """


def chosen_in(builds: Iterable[Build]) -> list[Chosen]:
    """The choices of each build, the most frequent first."""
    found = [
        Chosen(
            build=build.build_id,
            variant=entry.name,
            ops=entry.ops,
            computes=REGISTRY.tunings[entry.family].describe(row.call_class),
            trust=trust,
            times=times,
        )
        for build in builds
        for index, (row, entry) in enumerate(zip(build.table.rows, build.table.entries, strict=True))
        for trust in (Trust.EXACT, Trust.NEAREST, Trust.MODEL)
        if (times := build.times_chosen(index, trust))
    ]
    return sorted(found, key=lambda chosen: (-chosen.times, chosen.variant, chosen.computes, chosen.trust.value))
