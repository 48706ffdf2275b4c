"""Which sources are compiled together."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from gemmill.build.sources import Source, SourceKind
from gemmill.build.units import Unit, partition, split
from gemmill.registry import REGISTRY


def _source(name: str, kind: SourceKind = SourceKind.VARIANT, seconds: float = 12.0, tag: str = "cutlass") -> Source:
    return Source(
        kind=kind,
        name=name,
        path=PurePosixPath(f"sm90a/{name}.cu"),
        written=f"// {name}\n",
        key=f"key of {name}",
        tag=tag if kind is SourceKind.VARIANT else "",
        seconds=seconds,
    )


@pytest.mark.parametrize(
    ("count", "jobs", "sizes"),
    [
        (1, 2, [1]),
        (2, 2, [1, 1]),
        (7, 2, [4, 3]),
        (10, 2, [5, 5]),
        (16, 2, [8, 8]),
        (17, 2, [5, 4, 4, 4]),
        (20, 1, [7, 7, 6]),
        (9, 16, [1] * 9),
        (40, 4, [5] * 8),
    ],
)
def test_jobs_finish_together(count: int, jobs: int, sizes: list[int]) -> None:
    units = partition([_source(f"v{i:02}") for i in range(count)], jobs)
    assert sorted((len(unit.sources) for unit in units), reverse=True) == sizes
    assert sorted(s.name for unit in units for s in unit.sources) == [f"v{i:02}" for i in range(count)]
    assert max(sizes) <= REGISTRY.tagged("cutlass").unit_size


def test_heavy_and_light_are_mixed() -> None:
    sources = [_source(f"heavy{i}") for i in range(4)] + [_source(f"light{i}", seconds=4.0) for i in range(6)]
    first, second = partition(sources, 2)
    assert first.seconds == second.seconds


@pytest.mark.parametrize(("jobs", "sizes"), [(2, [6, 3]), (4, [3, 3, 3]), (8, [2, 2, 2, 1, 1, 1])])
def test_what_is_a_small_share_of_all_is_in_one_unit(jobs: int, sizes: list[int]) -> None:
    """A unit's headers take longer than a variant: another process is busy with other tags meanwhile."""
    few = [_source(f"v{i}") for i in range(6)] + [_source(f"w{i}", tag="groupedunaligned") for i in range(3)]
    units = partition([*few, *(_source(f"b{i}", SourceKind.BINDING, 25.0) for i in range(4))], jobs)
    assert sorted((len(unit.sources) for unit in units if unit.sources[0].is_variant), reverse=True) == sizes


def _tags(jobs: int, counts: dict[str, int], others: float = 1000.0) -> list[list[str]]:
    """Of each unit, next to work that takes so many seconds."""
    sources = [_source(f"{tag}{i}", tag=tag, seconds=1.0) for tag, count in counts.items() for i in range(count)]
    units = partition([*sources, _source("b", SourceKind.BINDING, others)], jobs)
    assert sorted(s.name for unit in units for s in unit.sources) == sorted(["b", *(s.name for s in sources)])
    return sorted(sorted(source.tag for source in unit.sources) for unit in units if unit.tags)


def test_tags_of_few_variants_share_a_unit() -> None:
    """Their headers take longer than they do."""
    few = {"fusedexperts": 1, "groupedunaligned": 1, "gatedunaligned": 2}
    assert _tags(2, few) == [["fusedexperts", "gatedunaligned", "gatedunaligned", "groupedunaligned"]]
    assert all(len(set(tags)) == 1 for tags in _tags(64, few)), "many processes wait for work"


def test_a_shared_unit_is_no_fuller_than_its_kernels_allow() -> None:
    half = {tag: REGISTRY.tagged(tag).unit_size // 2 for tag in ("groupedunaligned", "gatedunaligned")}
    assert len(_tags(2, half)) == 1
    assert len(_tags(2, half | {"fusedexperts": 1})) == 2
    assert len(_tags(2, half | {"groupedunaligned": half["groupedunaligned"] + 1})) == 2


def test_kernels_of_the_dsl_share_no_unit_with_others() -> None:
    assert _tags(2, {"gatedunaligned": 1, "fusedexperts": 1}) == [["fusedexperts", "gatedunaligned"]]
    sources = [_source("v0", tag="gatedunaligned", seconds=1.0)]
    sources += [replace(_source("d0", SourceKind.DSL, 1.0), tag="groupedmm")]
    assert len(partition([*sources, _source("b", SourceKind.BINDING, 1000.0)], 2)) == 3


def test_hand_written_files_are_alone_and_the_heaviest_come_first() -> None:
    sources = [_source("b", SourceKind.BINDING, 3.0), _source("k", SourceKind.KERNELS), _source("v0"), _source("v1")]
    units = partition(sources, 1)
    assert [[s.name for s in unit.sources] for unit in units] == [["v0", "v1"], ["k"], ["b"]]


def test_same_sources_same_units() -> None:
    sources = [_source(f"v{i}") for i in range(11)]
    assert partition(sources, 2) == partition(sources[::-1], 2)


def test_unit_file() -> None:
    unit = Unit(sources=(_source("a"), _source("b")))
    assert unit.text == '#include "sm90a/a.cu"\n#include "sm90a/b.cu"\n'
    assert unit.file_name == f"unit_{unit.key[:16]}.cu" and unit.label == "a and 1 more"
    assert unit.key != Unit(sources=(_source("b"), _source("a"))).key


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("sm90a/a_d8.cu(7): error: no", [["a_d8"], ["b_d8", "a_d80"]]),
        (
            "ptxas error   : Entry function 'gemmill_b_d8_kernel' uses too much shared data",
            [["b_d8"], ["a_d8", "a_d80"]],
        ),
        ("a_d8.cu: error\nb_d8.cu: error", [["a_d8"], ["b_d8"], ["a_d80"]]),
        ("segmentation fault", [["a_d8"], ["b_d8", "a_d80"]]),
    ],
)
def test_split_by_what_the_message_names(message: str, parts: list[list[str]]) -> None:
    unit = Unit(sources=tuple(_source(name) for name in ("a_d8", "b_d8", "a_d80")))
    assert [[s.name for s in part.sources] for part in split(unit, message)] == parts
