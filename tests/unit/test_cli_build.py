"""plan, build and cache: their calls of the layer below, and their output."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from gemmill.build import driver, maintenance, planning, toolchain
from gemmill.build.errors import BuildError
from gemmill.build.maintenance import CachedObject, CacheReport
from gemmill.build.options import BuildOptions, BuildPlan, BuildResult
from gemmill.cli.compiling import seconds_left
from gemmill.manifest import RejectedEntry, write_manifest
from gemmill.space import selections
from gemmill.space.names import to_name
from gemmill.vocab import Arch


@pytest.fixture
def configs(make_config, monkeypatch):
    """The selection `smoke`: one good variant, and two that a rule keeps out."""
    good, bad, worse = make_config(), make_config(swizzle=3), make_config(swizzle=5)
    monkeypatch.setitem(selections.SELECTIONS, "smoke", lambda arch: iter([good, bad, worse]))
    return [good]


class FakeLayer:
    """Records calls and answers with a plan and a result."""

    def __init__(self, manifest, configs) -> None:
        self.asked: list[tuple] = []
        self.error: Exception | None = None
        self.result = BuildResult(folder=Path("/none"), manifest=manifest, compile_seconds=75.0, reused=False)
        self.planned = BuildPlan(
            selection="smoke",
            arch=Arch.SM90A,
            configs=tuple(configs),
            kernels=(object(),),
            units=(object(), object()),
            cached=("a", "b", "c"),
            known_bad=(RejectedEntry(name="sm90a_bad", error="error: no"),),
            jobs=2,
            estimated_cpu_seconds=605.0,
            estimated_bytes=12_300_000,
        )

    def plan(self, selection, options) -> BuildPlan:
        self.asked.append(("plan", selection, options))
        return self.planned

    def build(self, selection, options, observer) -> BuildResult:
        self.asked.append(("build", selection, options))
        if self.error:
            raise self.error
        observer.started(30.0)
        observer.unit_done("unit of 8", 20.0, True)
        observer.unit_done("sm90a_cutlass_bad", 10.0, False)
        observer.linking()
        folder = options.home_dir / "builds" / self.result.manifest.build_id
        folder.mkdir(parents=True, exist_ok=True)
        write_manifest(self.result.manifest, folder / "manifest.json")
        result = dataclasses.replace(self.result, folder=folder)
        observer.finished(result)
        return result


@pytest.fixture
def fake(monkeypatch, make_manifest, configs, home) -> FakeLayer:
    fake = FakeLayer(make_manifest(rejected=()), configs)
    monkeypatch.setattr(planning, "plan", fake.plan)
    monkeypatch.setattr(driver, "build", fake.build)
    monkeypatch.setattr(toolchain, "find_toolchain", lambda: None)
    return fake


def test_plan_prints_counts_estimates_and_reasons(gemmill, fake) -> None:
    outcome = gemmill("plan", "--select", "smoke")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    for line in (
        "smoke for sm90a",
        "variants 1",
        "objects in the cache 3",
        "translation units to compile 2",
        "known not to compile (--retry-failed) 1",
        "estimated CPU time 10 min 05 s",
        "estimated size of the extension 12.3 MB",
        "2 kept out by rules",
        "1 launch_settings swizzle 3 is not 1, 2, 4 or 8",
        "1 launch_settings swizzle 5 is not 1, 2, 4 or 8",
    ):
        assert line in lines


def test_plan_as_json(gemmill, fake, configs, make_config) -> None:
    planned = json.loads(gemmill("plan", "--select", "smoke", "--json").out)
    assert planned["rejected"][0] == {
        "name": to_name(make_config(swizzle=3)),
        "rule": "launch_settings",
        "reason": "swizzle 3 is not 1, 2, 4 or 8",
    }
    del planned["rejected"]
    assert planned == {
        "selection": "smoke",
        "arch": "sm90a",
        "variants": 1,
        "kernels": 1,
        "units": 2,
        "cached": ["a", "b", "c"],
        "known_bad": [{"name": "sm90a_bad", "error": "error: no"}],
        "estimated_cpu_seconds": 605.0,
        "estimated_bytes": 12_300_000,
        "max_bytes": None,
        "jobs": 2,
        "without_toolchain": "",
    }


def test_plan_without_a_toolchain_says_so(gemmill, fake) -> None:
    fake.planned = dataclasses.replace(fake.planned, without_toolchain="no CUDA compiler: install one")
    outcome = gemmill("plan", "--select", "smoke")
    assert (outcome.code, outcome.err) == (0, "gemmill: nothing can be compiled yet: no CUDA compiler: install one\n")


def test_build_hands_on_what_it_is_told(gemmill, fake, configs, tmp_path) -> None:
    outcome = gemmill(
        *("build", "--select", "smoke", "--arch", "sm_90a", "--filter", "stages=auto", "--jobs", "3"),
        *("--max-size", "60MB", "--home", tmp_path, "--retry-failed"),
    )
    assert outcome.code == 0
    ((verb, selection, options),) = fake.asked
    assert verb == "build"
    assert (selection.name, selection.arch, list(selection.configs)) == ("smoke", "sm90a", configs)
    assert options == BuildOptions(jobs=3, max_size=60_000_000, home=tmp_path, retry_failed=True)


def test_build_without_the_dsl_compiles_what_nvcc_can_and_says_so(gemmill, fake, monkeypatch) -> None:
    monkeypatch.setattr("gemmill.build.dsl.DISTRIBUTION", "no-such-distribution")
    built = gemmill("build")
    assert built.err.startswith(
        "gemmill: no-such-distribution is not installed, so nvcc compiles selection nvcc; "
        "for default, install it with `pip install 'gemmill[dsl]'`\n"
    )
    gemmill("build", "--select", "smoke")
    assert [selection.name for _, selection, _ in fake.asked] == ["nvcc", "smoke"]


def test_build_prints_a_table_and_the_folder(gemmill, fake, configs, home) -> None:
    outcome = gemmill("build", "--select", "smoke")
    assert "1 variant in build 0123abcd4567 for sm90a (1.0 MB)" in outcome.out
    (line,) = [line for line in outcome.out.splitlines() if to_name(configs[0]) in line]
    assert line.split()[2:] == ["168", "0", "B", "20.5", "kB", "16", "s"]
    assert outcome.out.endswith(f"compiled in 1 min 15 s: {home}/builds/0123abcd4567\n")
    assert "did not compile: sm90a_cutlass_bad" in outcome.err


def test_build_of_the_same_again_says_so(gemmill, fake, home) -> None:
    fake.result = dataclasses.replace(fake.result, reused=True)
    outcome = gemmill("build", "--select", "smoke")
    assert outcome.out.endswith(f"the same build was there: {home}/builds/0123abcd4567\n")


def test_build_without_some_variants_is_code_5(gemmill, fake, make_manifest) -> None:
    fake.result = dataclasses.replace(fake.result, manifest=make_manifest())
    outcome = gemmill("build", "--select", "smoke")
    assert outcome.code == 5
    assert outcome.err.endswith("gemmill: not built: sm90a_cutlass_bad: error: static assertion failed\n")


def test_what_failed_before_can_be_tried_again(gemmill, fake, make_manifest) -> None:
    fake.result = dataclasses.replace(fake.result, manifest=make_manifest(), remembered=1)
    lines = gemmill("build", "--select", "smoke").err.splitlines()
    again = "1 variant of these failed in an earlier build and was not tried again: --retry-failed tries it"
    assert lines[-1] == f"gemmill: {again}"


def test_what_has_the_same_reason_is_told_in_one_line(gemmill, fake, make_manifest) -> None:
    rows = [("a", "no CuTe DSL"), ("b", "error: no"), ("c", "no CuTe DSL"), ("d", "no CuTe DSL")]
    rejected = tuple(RejectedEntry(name=name, error=error) for name, error in rows)
    fake.result = dataclasses.replace(fake.result, manifest=make_manifest(rejected=rejected))
    lines = gemmill("build", "--select", "smoke").err.splitlines()
    assert lines[-2:] == ["gemmill: not built: a and 2 more: no CuTe DSL", "gemmill: not built: b: error: no"]


def test_build_that_fails_is_code_4(gemmill, fake) -> None:
    fake.error = BuildError("the disk is full: free some space")
    outcome = gemmill("build", "--select", "smoke")
    assert outcome.code == 4
    assert outcome.err.endswith("gemmill: the disk is full: free some space\n")


def test_build_without_a_toolchain_is_code_3(gemmill, fake, monkeypatch) -> None:
    def missing() -> None:
        raise BuildError("no CUDA compiler: install it")

    monkeypatch.setattr(toolchain, "find_toolchain", missing)
    outcome = gemmill("build", "--select", "smoke")
    assert (outcome.code, outcome.out, outcome.err) == (3, "", "gemmill: no CUDA compiler: install it\n")
    assert fake.asked == []


@pytest.mark.parametrize(
    ("total", "completed", "units", "elapsed", "jobs", "left"),
    [
        (100.0, 0.0, 0, 0.0, 2, 50.0),  # nothing known yet: the estimate, shared by the jobs
        (100.0, 50.0, 5, 25.0, 1, 25.0),  # half is done
        (100.0, 20.0, 2, 10.0, 3, 70.0 / 3),  # of three jobs two are in flight, half done: 30 in 10 s
        (100.0, 100.0, 4, 50.0, 8, 0.0),
    ],
)
def test_time_left(total, completed, units, elapsed, jobs, left) -> None:
    assert seconds_left(total, completed, units, elapsed, jobs) == pytest.approx(left)


def test_progress_is_told_in_lines_where_there_is_no_terminal(gemmill, fake) -> None:
    lines = gemmill("build", "--select", "smoke").err.splitlines()
    assert lines[0].startswith("compiled unit of 8, about ") and lines[0].endswith(" left")
    assert lines[1] == "did not compile: sm90a_cutlass_bad"
    assert not re.search(r"[━╸]|\d%", "".join(lines)), "a bar is for terminals"


def test_dry_run_plans_and_builds_nothing(gemmill, fake) -> None:
    dry = gemmill("build", "--select", "smoke", "--dry-run", "--jobs", "7")
    assert [(verb, options.jobs) for verb, _, options in fake.asked] == [("plan", 7)]
    assert dry.out == gemmill("plan", "--select", "smoke", "--jobs", "7").out


@pytest.mark.parametrize(
    ("text", "size"),
    [("60MB", 60_000_000), ("1.5GiB", 3 << 29), ("2 kib", 2048), ("12345", 12345), ("7b", 7), ("1e6", 1_000_000)],
)
def test_sizes(gemmill, fake, text: str, size: int) -> None:
    gemmill("plan", "--select", "smoke", "--max-size", text)
    assert fake.asked[0][2].max_size == size


@pytest.mark.parametrize("arch", ["sm90a", "sm_90a", "90a", "SM_90a"])
def test_spellings_of_an_architecture(gemmill, fake, arch: str) -> None:
    gemmill("plan", "--select", "smoke", "--arch", arch)
    assert fake.asked[0][1].arch is Arch.SM90A


def test_cache_list(gemmill, monkeypatch, tmp_path) -> None:
    objects = (
        CachedObject(
            key="abcdef" * 8, names=("one", "two"), object_bytes=2_000_000, cpu_seconds=90.0, used=1_800_000_000.0
        ),
    )
    homes = []
    monkeypatch.setattr(maintenance, "cache_list", lambda home: homes.append(home) or objects)
    outcome = gemmill("cache", "list", "--home", tmp_path)
    assert homes == [tmp_path] and "1 object, 2.0 MB" in outcome.out
    assert any(
        line.split() == "abcdefabcdef 2 2.0 MB 1 min 30 s 2027-01-15 08:00".split() for line in outcome.out.splitlines()
    )
    assert json.loads(gemmill("cache", "list", "--json").out)[0] == {
        "key": "abcdef" * 8,
        "names": ["one", "two"],
        "object_bytes": 2_000_000,
        "cpu_seconds": 90.0,
        "used": 1_800_000_000.0,
    }


def test_cache_gc(gemmill, monkeypatch) -> None:
    asked = {}

    def collect(home, **limits) -> CacheReport:
        asked.update(limits)
        return CacheReport(kept=3, removed=("a", "b"), freed_bytes=5_000_000)

    monkeypatch.setattr(maintenance, "cache_gc", collect)
    outcome = gemmill("cache", "gc", "--max-age", "7", "--max-size", "500MB")
    assert (outcome.code, outcome.out) == (0, "removed 2 objects (5.0 MB), kept 3\n")
    assert asked == {"max_age_days": 7.0, "max_bytes": 500_000_000}


@pytest.mark.parametrize(("removed", "code"), [((), 0), (("abc",), 1)])
def test_cache_verify(gemmill, monkeypatch, removed, code) -> None:
    monkeypatch.setattr(maintenance, "cache_verify", lambda home: CacheReport(kept=2, removed=removed, freed_bytes=0))
    outcome = gemmill("cache", "verify")
    assert outcome.code == code
    assert outcome.out == "".join(f"damaged, removed: {key}\n" for key in removed) + "2 objects whole\n"


def test_cache_of_an_empty_home(gemmill, home) -> None:
    assert json.loads(gemmill("cache", "list", "--json").out) == []
    assert gemmill("cache", "gc").out == "removed 0 objects (0 B), kept 0\n"
    assert gemmill("cache", "verify").code == 0
    assert not home.exists()
