"""Named sets: distinct, allowed by every rule, and between them an answer to every call."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gemmill.families import scaled_mm
from gemmill.families.quant.config import QuantConfig
from gemmill.families.quant.ops import QUANT_OPS, ops_of
from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP, accepted
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.selections import with_dsl, with_promotion
from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.space import selections
from gemmill.space.names import to_name
from gemmill.space.selections import SELECTIONS, select
from gemmill.vocab import Accumulation, Arch, Backend, Compiler, DType

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize("name", SELECTIONS)
def test_configs_are_distinct_allowed_and_of_the_arch(name: str, arch: Arch) -> None:
    selection = select(name, arch)
    assert (selection.name, selection.arch) == (name, arch)
    assert len(set(selection.configs)) == len(selection.configs) > 0
    assert {config.arch for config in selection.configs} == {arch}
    assert all(REGISTRY.check(config) for config in REGISTRY.configs_of(scaled_mm.NAME, selection.configs))


def test_there_are_five() -> None:
    assert list(SELECTIONS) == ["smoke", "default", "nvcc", "serving", "sweep"]
    with pytest.raises(ValueError, match="no selection 'all': there are smoke, default, nvcc, serving, sweep"):
        select("all")


def test_the_same_selection_comes_in_the_same_order() -> None:
    assert select("sweep").configs == select("sweep").configs


@pytest.mark.parametrize("name", ["smoke", "default", "nvcc"])
def test_every_call_has_a_variant_without_alignment(name: str) -> None:
    """K, N and M of any size, with each operand type, result type, op and zero point."""
    fallback = [
        (config, p)
        for config in REGISTRY.configs_of(scaled_mm.NAME, select(name).configs)
        if (p := accepted(config)).alignment_a == p.alignment_b == p.alignment_d == 1
    ]
    served = {
        (op, p.a_dtype, p.out_dtype, azp)
        for config, p in fallback
        if p.bias and p.min_k == 0
        for op in REGISTRY.ops_of(config)
        for azp in p.azp
    }
    for out in (DType.BF16, DType.F16):
        assert {(SCALED_MM, DType.E4M3, out, "none"), (SCALED_MM, DType.S8, out, "none")} <= served
        assert {(SCALED_MM_AZP, DType.S8, out, "row"), (SCALED_MM_AZP, DType.S8, out, "token")} <= served
        assert (SCALED_MM, out, out, "none") in served


@pytest.mark.parametrize(("name", "dtypes"), [("default", {"bf16", "f16"}), ("sweep", {"bf16"}), ("smoke", {"bf16"})])
def test_operands_of_16_bits_have_kernels_of_the_dsl(name: str, dtypes: set[str]) -> None:
    plain = [c for c in REGISTRY.configs_of(scaled_mm.NAME, select(name).configs) if c.operands.a_dtype.bits == 16]
    assert {c.operands.a_dtype for c in plain if c.backend is Backend.CUTEDSL} == dtypes
    assert all(c.design.alignment_a in (1, 8) and c.operands.out_dtype is c.operands.a_dtype for c in plain)


def _classes_of(configs: Iterable[Config]) -> set[tuple[str, int]]:
    families = ((REGISTRY.family_of(config), config) for config in configs)
    return {(family.name, row.call_class) for family, config in families for row in family.tuning.rows(config, 0)}


BF16 = r"^(?!.*(?<!b)f16)(?!.*_quant_[a-z]+_f32_)"
"""Of names: neither f16, nor float32 before quantisation."""


def test_serving_answers_what_default_answers_in_bf16() -> None:
    """Where a kernel has another name, or is new: `gemmill prune` as docs/tuning.md has it writes the file again."""
    serving, default = select("serving").configs, select("default").configs
    assert set(serving) <= set(default)
    in_bf16 = [config for config in default if re.search(BF16, to_name(config))]
    assert _classes_of(serving) == _classes_of(in_bf16)
    assert BF16 in (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8"), "the command that writes the file"
    assert len({to_name(config.compiled) for config in serving}) < 670


def test_every_call_of_a_quantisation_op_has_one_variant() -> None:
    chosen = [config for config in select("default").configs if isinstance(config, QuantConfig)]
    for op in QUANT_OPS:
        wanted = list(op.configs(Arch.SM90A))
        assert [config for config in chosen if op.serves(config)] == sorted(wanted, key=chosen.index)
        assert len(set(wanted)) == len(wanted)
    assert all(ops_of(config) for config in chosen)


def test_the_smoke_selection_has_every_op_for_bf16_and_floating_point_codes() -> None:
    smoke = [config for config in select("smoke").configs if isinstance(config, QuantConfig)]
    codes = (DType.E4M3, DType.E2M1, DType.E3M2)
    assert {(config.in_dtype, config.out_dtype) for config in smoke} == {(DType.BF16, code) for code in codes}
    served = {op for config in smoke for op in ops_of(config)}
    assert served == {op.name for op in QUANT_OPS if not set(codes).isdisjoint(op.out_dtypes)}


def test_rejections_keep_name_rule_and_reason(monkeypatch, make_config) -> None:
    good, bad = make_config(), make_config(swizzle=3)
    monkeypatch.setitem(selections.SELECTIONS, "mixed", lambda arch: iter([bad, good]))
    selection = select("mixed")
    assert selection.configs == (good,)
    (rejection,) = selection.rejections
    assert (rejection.name, rejection.status.rule) == (to_name(bad), "launch_settings")
    assert rejection.status.reason == "swizzle 3 is not 1, 2, 4 or 8"


def test_duplicates_raise(monkeypatch, make_config) -> None:
    monkeypatch.setitem(selections.SELECTIONS, "twice", lambda arch: iter([make_config(), make_config()]))
    with pytest.raises(ValueError, match=f"selection 'twice' has {to_name(make_config())} twice"):
        select("twice")


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_dsl_kernel_can_be_made_of_all_that_is_selected(name: str) -> None:
    configs = [c for c in REGISTRY.configs_of(scaled_mm.NAME, select(name).configs) if c.backend is Backend.CUTEDSL]
    assert bool(configs) is (name != "nvcc")
    for config in configs:
        Plan(config)  # raises where it cannot


def test_the_same_schedule_in_both_backends(make_config) -> None:
    assert to_name(with_dsl(make_config())) == to_name(make_config()).replace("_cutlass_", "_cutedsl_")


def test_launch_settings_share_compilations() -> None:
    """Of the family whose variants have launch settings: others have a kernel for each variant."""
    configs = list(REGISTRY.configs_of(scaled_mm.NAME, select("sweep").configs))
    assert len({config.compiled for config in configs}) < len(configs) / 2


def test_promotion_changes_the_accumulation_alone(make_config) -> None:
    assert with_promotion(make_config()) == make_config(accumulation=Accumulation.PROMOTED)


def test_nvcc_alone_makes_every_kernel_of_its_selection_and_of_each_family_that_it_can() -> None:
    chosen = select("nvcc").configs
    assert {REGISTRY.kernels_of(config).compiler for config in chosen} == {Compiler.NVCC}
    made = {f.name for f in REGISTRY.families if any(kernels.compiler is Compiler.NVCC for kernels in f.kernels)}
    assert {REGISTRY.family_of(config).name for config in chosen} == made


def test_default_has_all_of_smoke() -> None:
    """The real build has every call of the quick one."""
    assert set(select("smoke").configs) <= set(select("default").configs)
