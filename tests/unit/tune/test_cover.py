"""Kernels that suffice: the greedy cover, and the model's times where nothing was measured."""

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from gemmill.families import gated_mm, grouped_mm
from gemmill.family import Config, Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.select import model_ns, rejection
from gemmill.space.selections import select
from gemmill.tuner import prune
from gemmill.tuner.cover import fewest, modelled, random_calls
from gemmill.vocab import Arch

DECODE = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"
SMS = Arch.SM90A.sm_count


def test_the_fewest_kernels_serve_each_call() -> None:
    ratios = {1: {"a": 1.0, "b": 1.01}, 2: {"b": 1.0}, 3: {"b": 1.02, "c": 1.0}, 4: {"d": 1.0}}
    assert fewest(ratios) == ["b", "d"]
    assert fewest(ratios, {"d"}) == ["b"]
    assert fewest({1: {"a": 1.02, "b": 1.01}}) == ["b"], "the faster one of those that serve as many"
    assert fewest({}) == []


@pytest.mark.parametrize("family", [grouped_mm.NAME, gated_mm.NAME])
def test_the_model_leaves_what_is_near_its_choice_at_random_calls(family: str) -> None:
    configs = REGISTRY.configs_of(family, select("default").configs)
    kept = modelled(configs, (), 24, 0.1, SMS)
    assert kept < set(configs) and len(modelled(configs, (), 24, 0.0, SMS)) > len(kept)
    every, left = _by_class(configs), _by_class(kept)
    assert every.keys() == left.keys()
    for number, rows in every.items():
        for call in random_calls(family, number, 24):
            assert _least_ns(left[number], call) <= 1.1 * _least_ns(rows, call)


def test_classes_that_are_served_need_no_kernels_and_others_without_sizes_keep_all() -> None:
    configs = [config for config in select("default").configs if REGISTRY.family_of(config).name != "scaled_mm"]
    grouped = [config for config in configs if REGISTRY.family_of(config).name == grouped_mm.NAME]
    quantising = [config for config in configs if REGISTRY.family_of(config).name == "quant"]
    served = {(grouped_mm.NAME, row.call_class) for config in grouped for row in _rows(config)}
    assert modelled([*grouped, *quantising], served, 8, 0.1, SMS) == set(quantising)


def test_random_calls_are_the_same_each_time_and_some_are_ragged() -> None:
    number = next(row.call_class for row in _rows(REGISTRY.configs_of(grouped_mm.NAME, select("default").configs)[0]))
    calls = random_calls(grouped_mm.NAME, number, 64)
    assert calls == random_calls(grouped_mm.NAME, number, 64) and len(set(calls)) == 64
    usual = REGISTRY.choices[grouped_mm.NAME].usual(number)
    named = [REGISTRY.choices[grouped_mm.NAME].named(call.sizes) for call in calls]
    assert all(least <= sizes[name] <= most for sizes in named for name, (least, most, _) in usual.items())
    assert {sizes["n"] % 128 == 0 for sizes in named[:15]} == {True} and named[15]["n"] % 128
    assert {call.alignments for call in calls} == {(16, 16, 16), (1, 1, 1)}


def test_prune_takes_random_calls_of_what_was_not_measured(gemmill, tmp_path: Path, monkeypatch) -> None:
    from gemmill.tuner.workloads import workload_of

    shape = workload_of("fp8", {"m": 16, "n": 4096, "k": 4096})
    monkeypatch.setattr(prune, "times_of_drawn", lambda path: {shape: {DECODE: 1.0}})
    command = ("prune", tmp_path / "drawn.json.xz", "--within", "10%", "--out", tmp_path / "small.json")
    of = ("--filter", "re:scaledbias_channel_t64x16x256|gatedmm_e4m3_e4m3static_(silu|swiglu)_t")
    counts = []
    for options in ((), ("--random", "0"), ("--random", "24")):
        assert gemmill(*command, *of, *options).code == 0
        counts.append(len(select(str(tmp_path / "small.json")).configs))
    assert counts[0] == counts[1] > counts[2]


def _rows(config: Config) -> list[Row]:
    return list(REGISTRY.family_of(config).tuning.rows(config, 0))


def _by_class(configs: Iterable[Config]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for config in configs:
        for row in _rows(config):
            found.setdefault(row.call_class, []).append(row)
    return found


def _least_ns(rows: list[Row], call: ShapedCall) -> float:
    return min((model_ns(row, call, SMS) for row in rows if rejection(row, call) is None), default=math.inf)
