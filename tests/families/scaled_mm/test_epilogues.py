"""Users' epilogues on a CPU: their results, the op, its bounds, their kernels and the command."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmill
from gemmill.arithmetic import scaled_sums
from gemmill.cli import main as command
from gemmill.epilogue import (
    Epilogue,
    Scalar,
    Value,
    as_float,
    epilogue,
    where,
)
from gemmill.families.scaled_mm import own, selections
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.bounds import outside_of_own, own_interval
from gemmill.families.scaled_mm.classes import class_of, classes_of, describe_class
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.reference import own_mm
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.gemm.standard import standard
from gemmill.gemm.traced import Kind, Stored, known, learn
from gemmill.gemm.tracing import trace
from gemmill.manifest import ManifestError, read_manifest, write_manifest
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, DType, EpilogueKind
from own_epilogues import OWN, biased, cases, configs, everything

# Its results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EpilogueKind)
def test_the_standard_epilogues_compute_what_the_reference_does(kind: EpilogueKind) -> None:
    traced = standard(kind, Kind.S32, with_scales=True)
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-128, 128, (5, 33), dtype=torch.int8, generator=generator) for _ in range(2))
    values = {
        "a_scale": torch.rand(5, 1, generator=generator) - 0.3,
        "b_scale": torch.rand(1, 5, generator=generator) - 0.3,
        "bias": torch.randn(5, generator=generator).bfloat16(),
        "azp_adj": torch.randint(-99, 99, (5,), dtype=torch.int32, generator=generator),
        "azp": torch.randint(-9, 9, (5,), dtype=torch.int32, generator=generator),
    }
    given = {"out": torch.empty(5, 5, dtype=torch.bfloat16), "a": a, "b": b.t()}
    given |= {role: values[name] for name, role in own.roles_of(traced).items()}
    bias = values["bias"] if kind.takes_bias else None
    adj = values["azp_adj"] if kind.takes_azp else None
    azp = values["azp"] if kind is EpilogueKind.SCALED_AZP_PER_TOKEN else None
    expected = scaled_sums(
        a.double() @ b.t().double(), values["a_scale"], values["b_scale"], torch.bfloat16, bias, adj, azp
    )
    assert torch.equal(own_mm(traced, given), expected)


def test_the_op_equals_the_built_in_one() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(7, 64, generator=generator).to(torch.float8_e4m3fn) for _ in range(2))
    scales = torch.rand(7, 1, generator=generator), torch.rand(1, 7, generator=generator)
    bias = torch.randn(7, generator=generator).bfloat16()
    expected = gemmill.cutlass_scaled_mm(a, b.t(), *scales, torch.bfloat16, bias)
    assert torch.equal(biased(a, b.t(), *scales, bias), expected)
    assert torch.equal(biased(a, b.t(), bias=bias, b_scale=scales[1], a_scale=scales[0]), expected)


@pytest.mark.parametrize("of", OWN, ids=lambda of: of.traced.name)
def test_the_reference_lies_within_the_bounds(of: Epilogue) -> None:
    for case in cases(of):
        assert case.run("cpu").report == "", str(case)


@pytest.mark.parametrize("of", OWN, ids=lambda of: of.traced.name)
def test_bounds_find_what_is_wrong(of: Epilogue) -> None:
    case = next(case for case in cases(of) if case.product.data == "integers")
    given, _ = case._made(torch.device("cpu"))
    given["out"].copy_(own_mm(of.traced, given))
    ends = own_interval(of.traced, given, Accumulation.EXACT)
    assert not outside_of_own(given["out"], ends).any()
    known_ones = float((ends[0].isfinite() & ends[1].isfinite()).double().mean())
    assert known_ones > 0.99, "most results are judged"
    for far in (1 + 2.0**-6, float("nan")):
        wrong = outside_of_own(given["out"] * far, ends)
        nonzero = given["out"].abs() > 2.0**-100
        assert wrong[nonzero].double().mean() > 0.9


def test_bounds_at_comparisons_and_poles() -> None:
    def steps(acc: Value, at: Scalar) -> Value:
        return where(acc >= at, 1.0 + 0 * acc, where(acc == 0, as_float(acc) * 0 - 1.0, 1.0 / acc))

    traced = trace(steps, Kind.F32)
    a = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]]).to(torch.float8_e4m3fn)
    b = torch.tensor([[1.0, 0.0]]).to(torch.float8_e4m3fn).t()
    given = {"out": torch.tensor([[-1.0], [0.5], [1.0]]).bfloat16(), "a": a, "b": b, "scalar0": 4.0}
    assert not outside_of_own(given["out"], own_interval(traced, given, Accumulation.EXACT)).any()
    for row, value in enumerate((1.0, 1.0, 0.25)):
        changed = given["out"].clone()
        changed[row] = value
        assert outside_of_own(changed, own_interval(traced, given, Accumulation.EXACT)).sum() == 1


# The op --------------------------------------------------------------------------------------------------------------


def arguments(**changed: Any) -> list[Any]:
    a, b = (torch.zeros(3, 16).to(torch.float8_e4m3fn) for _ in range(2))
    given = {
        "out": torch.zeros(3, 3, dtype=torch.bfloat16),
        "a": a,
        "b": b.t(),
        "a_scale": torch.ones(3),
        "b_scale": torch.ones(1, 3),
        "bias": torch.zeros(3, dtype=torch.bfloat16),
    }
    return list((given | changed).values())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"a_scale": torch.ones(2)}, "a_scale has shape [2] and strides [1]: there is one value, or one for each of 3 rows, without gaps"),
        ({"b_scale": torch.ones(6)[::2]}, "b_scale has shape [3] and strides [2]: there is one value, or one for each of 3 columns, without gaps"),
        ({"b_scale": torch.ones(3, dtype=torch.float64)}, "b_scale is float64, expected float32"),
        ({"bias": torch.zeros(3)}, "bias is float32, expected bfloat16"),
        ({"out": torch.zeros(3, 3)}, "out is float32, expected bfloat16, float16 or float8_e4m3fn"),
        ({"a": torch.zeros(3, 16, dtype=torch.int8)}, "a is int8, expected float8_e4m3fn, bfloat16 or float16"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(changed: dict[str, Any], sentence: str) -> None:
    given = arguments(**changed)
    given[0].fill_(7)
    with pytest.raises(RuntimeError) as told:
        getattr(torch.ops.gemmill, biased.name)(*given)
    assert str(told.value).split(": ", 1) == [biased.name, sentence]
    assert (given[0] == 7).all()


def test_a_result_over_an_operand_is_refused() -> None:
    memory = torch.zeros(3, 3, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="out"):
        getattr(torch.ops.gemmill, biased.name)(*arguments(out=memory, bias=memory[0]))


def test_defining_it_again_changes_nothing() -> None:
    again = epilogue(biased.function)
    assert again.name == biased.name and REGISTRY.ops[biased.name][1].schema == biased.op.schema
    other = replace(
        biased.op, schema=replace(biased.op.schema, schema=biased.op.schema.schema.replace(" bias", " added"))
    )
    with pytest.raises(ValueError, match=r"^op 'mm_biased_.*' is 'mm_biased_.*' already, not"):
        REGISTRY.add(REGISTRY.ops[biased.name][0], other)


def test_its_fake_has_the_results_shape() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = (torch.empty(n, 32, dtype=torch.float8_e4m3fn) for n in (5, 8))
        out = biased(a, b.t(), torch.empty(5, 1), torch.empty(1, 8), torch.empty(8, dtype=torch.bfloat16))
        assert out.shape == (5, 8) and out.dtype is torch.bfloat16


# Kernels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", OWN, ids=lambda of: of.traced.name)
def test_kernels(of: Epilogue) -> None:
    made = configs(of)
    assert made and {config.operands.a_dtype for config in made} == set(of.operands)
    assert {config.operands.out_dtype for config in made} == set(of.results) - {DType.E4M3}
    for config in made:
        assert parse_name(to_name(config)) == config
        assert REGISTRY.check(config), to_name(config)
        plan = Plan(config.compiled)
        words = len(plan.m_fields) * plan.group_m + len(plan.n_fields) * plan.group_n
        assert plan.vector_words == (0 if plan.split_k else words)
    assert REGISTRY.ops_of(made[0]) == (of.name,) and REGISTRY.epilogue_of(made[0]) == of.traced.text


def test_what_was_measured_of_the_standard_epilogue_serves() -> None:
    config = configs(biased)[0]
    measured = selections._config(
        selections._gemm(DType.E4M3, DType.BF16), ((128, 80, 128), (2, 1, 1), config.design.kernel_schedule)
    )
    offered = TUNING.offers(selections.with_dsl(measured))
    (number,) = classes_of(accepted(config))
    assert [to_name(found) for found in offered[number]] == [to_name(replace(config, launch=measured.launch))]
    told = class_of(number)
    assert (told.operand, told.out, told.own) == (DType.E4M3, DType.BF16, own.class_of_epilogue(biased.traced))
    assert describe_class(number) == f"e4m3 x e4m3 to bf16 with epilogue {told.own:010x}"


def test_an_input_in_16_bits_takes_a_word_in_shared_memory() -> None:
    plan = Plan(next(c for c in configs(everything) if not Plan(c).split_k).compiled)
    assert [given.stored for given in plan.m_fields] == [Stored.F32, Stored.S32, Stored.OUT]
    assert [given.name for given in plan.scalar_fields] == ["alpha", "limit"]


# The command ---------------------------------------------------------------------------------------------------------


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gemmill", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


MODULE = """
from gemmill.epilogue import Row, Value

def plain(acc: Value, scale: Row) -> Value:
    return acc * scale

def bad(acc: Value) -> Value:
    return acc if acc else acc

a_number = 7
"""


def test_the_command_finds_it(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(MODULE)
    status, text = run("build", "--select", "smoke", "--epilogue", "ends:plain", "--dry-run", folder=tmp_path)
    assert status == 0, text
    fewer = run(
        "build",
        "--select",
        "smoke",
        "--epilogue",
        "ends:plain",
        "--filter",
        "*_epiloguemm_*",
        "--dry-run",
        folder=tmp_path,
    )
    assert fewer[0] == 0 and "variants" in fewer[1]


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("ends", "epilogue 'ends' is not spelled MODULE:FUNCTION"),
        ("ends:none", "epilogue 'ends:none': module ends has no 'none'"),
        ("nowhere:plain", "epilogue 'nowhere:plain': No module named 'nowhere'"),
        ("ends:bad", "line 8: `return acc if acc else acc`): it uses a value as a condition"),
        ("ends:a_number", "7 is no epilogue: a function with a name is expected"),
    ],
)
def test_the_command_refuses_what_is_none(
    tmp_path: Path, spelled: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ends.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ends", raising=False)
    with pytest.raises(SystemExit) as end:
        command(["build", "--select", "smoke", "--epilogue", spelled, "--dry-run"])
    assert end.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    monkeypatch.delitem(sys.modules, "ends", raising=False)


def test_what_a_build_brings_is_learnt_by_reading_it(make_manifest: Any, tmp_path: Path) -> None:
    """A manifest is read where nobody has the function: its entry has all steps."""
    manifest = make_manifest(configs(biased)[0])
    traced = replace(biased.traced, name="from_afar")
    with pytest.raises(ValueError, match="is not known here"):
        known(traced.key)
    (entry,) = manifest.entries
    assert entry.epilogue == biased.traced.text
    write_manifest(replace(manifest, entries=(replace(entry, epilogue=traced.text),)), tmp_path / "m.json")
    read_manifest(tmp_path / "m.json")
    assert known(traced.key) == traced and learn(traced) == traced


def test_an_epilogue_that_no_family_reads_is_refused(make_manifest: Any, tmp_path: Path) -> None:
    (entry,) = make_manifest(configs(biased)[0]).entries
    for text in ("no steps", "{}"):
        write_manifest(
            replace(make_manifest(configs(biased)[0]), entries=(replace(entry, epilogue=text),)), tmp_path / "m.json"
        )
        with pytest.raises(ManifestError, match="is not a valid manifest"):
            read_manifest(tmp_path / "m.json")
