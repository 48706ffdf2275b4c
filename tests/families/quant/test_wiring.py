"""The way of a quantisation kernel from a selection into a manifest, where it differs from a GEMM's."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from gemmill.build.inspect import KernelFacts, facts_of
from gemmill.build.options import BuildOptions
from gemmill.build.sources import Source, variant_source
from gemmill.build.units import partition
from gemmill.build.workshop import keys_for
from gemmill.emit.render import render
from gemmill.families import quant
from gemmill.families.quant.config import QuantConfig, Scaling
from gemmill.families.quant.selections import default as quant_configs
from gemmill.manifest import Manifest, ManifestError, read_manifest, write_manifest
from gemmill.registry import REGISTRY
from gemmill.space.filters import FilterError, apply
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch, DType

GROUP = QuantConfig.of(Scaling.GROUP, DType.BF16, out_dtype=DType.E4M3, group_size=128)


def test_a_manifest_of_both_families_reads_back(make_manifest: Callable[..., Manifest], tmp_path: Path) -> None:
    manifest = make_manifest(*select("smoke").configs)
    assert {entry.family for entry in manifest.entries} == {family.name for family in REGISTRY.families}
    write_manifest(manifest, tmp_path / "m.json")
    assert read_manifest(tmp_path / "m.json") == manifest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"family": "scaled_mm"}, r"manifest\.entries\[0\]\.config lacks arch|config lacks .*design"),
        ({"family": "sparse"}, r"manifest\.entries\[0\]\.family is 'sparse', expected one of scaled_mm, quant"),
        ({"epilogue": {"group_size": 48}}, r"group_size=48: groups of 32, 64, 128"),
        ({"epilogue": {"scale_format": "f8"}}, r"config\.epilogue\.scale_format is 'f8', expected one of f32, f32pow2"),
    ],
)
def test_an_entry_is_read_by_its_family(change: dict, reason: str, make_manifest, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write_manifest(make_manifest(GROUP), path)
    data = json.loads(path.read_text())
    for key, value in change.items():
        entry = data["entries"][0]
        entry = entry["config"] if key == "epilogue" else entry
        entry[key] = entry[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match=reason):
        read_manifest(path)


def test_families_are_filtered_like_any_field() -> None:
    smoke = select("smoke")
    own = apply(smoke, ["family=quant"]).configs
    assert own and all(REGISTRY.family_of(config).name == quant.NAME for config in own)
    others = [
        apply(smoke, [f"family={family.name}"]).configs for family in REGISTRY.families if family.name != quant.NAME
    ]
    assert {config for configs in others for config in configs} == set(smoke.configs) - set(own)
    assert {config.scaling for config in apply(smoke, ["scaling=token"]).configs} == {Scaling.TOKEN}
    assert apply(smoke, ["kernel_schedule=pingpong"]).configs
    with pytest.raises(
        FilterError, match="no variant has that scaling; the values are block, dequant, experts, group, rmsgroup"
    ):
        apply(smoke, ["scaling=row"])


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    keys = keys_for(Arch.SM90A, BuildOptions())
    return [variant_source(config, keys) for config in {config.compiled for config in select("default").configs}]


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_units_hold_one_kind_and_no_more_than_kernels_allow(jobs: int, sources: list[Source]) -> None:
    units = partition(sources, jobs)
    assert sorted(source.name for unit in units for source in unit.sources) == sorted(s.name for s in sources)
    for unit in units:
        assert {source.kind for source in unit.sources} == {unit.kind}
        assert sum(Fraction(1, REGISTRY.tagged(source.tag).unit_size) for source in unit.sources) <= 1


def test_facts_are_of_the_variants_own_kernels() -> None:
    name = to_name(GROUP)
    facts = {
        f"_ZN7gemmill5quant18group_quant_kernelI{len(name)}{name}13__nv_bfloat16Lb1EEEvv": KernelFacts(
            registers=40, spill_bytes=8, code_bytes=320, sass={"LDL": 1, "STL": 2}
        ),
        f"_ZN7gemmill5quant18group_quant_kernelI{len(name)}{name}13__nv_bfloat16Lb0EEEvv": KernelFacts(
            registers=32, code_bytes=160, sass={"STL": 1}
        ),
        f"_ZN7gemmill5quant18group_quant_kernelI{len(name) + 1}{name}x13__nv_bfloat16EEvv": KernelFacts(registers=255),
        f"gemmill_{name}x_kernel": KernelFacts(registers=255),
    }
    assert facts_of(name, facts) == KernelFacts(registers=40, spill_bytes=8, code_bytes=480, sass={"LDL": 1, "STL": 3})
    assert facts_of("sm90a_cutlass_x", {"gemmill_sm90a_cutlass_x_kernel": KernelFacts(registers=168)}).registers == 168
    assert facts_of("other", facts) == KernelFacts()


def test_the_extension_lists_all_kernels_in_one_table() -> None:
    text = render("extension/variants.cpp.jinja", {"symbols": ["gemmill_a", "gemmill_q"], "build_id": "0123"})
    assert '{"gemmill_a", gemmill_a, gemmill_a_workspace},\n    {"gemmill_q", gemmill_q, gemmill_q_workspace},' in text
    assert "gemmill_kernel_count = 2;" in text


def test_each_op_config_is_named_once() -> None:
    names = [to_name(config) for config in quant_configs(Arch.SM90A)]
    assert len(set(names)) == len(names) == 359
