"""explain and verify: the calls that they describe, and their output."""

import json
from types import SimpleNamespace

import pytest
import torch

import gemmill as package
from gemmill.families.gated_mm.selections import default as gated_configs
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.families.quant.selections import default as quant_configs
from gemmill.families.quant.selections import smoke as smoke_quant_configs
from gemmill.families.scaled_mm.shaped_call import shaped_call_of
from gemmill.numerics import verify as layer
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.verify import Verdict
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import Choice, select
from gemmill.runtime.serving import serving_of
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import to_name
from gemmill.vocab import Arch, DType, EpilogueKind, KernelSchedule


@pytest.fixture
def asked(monkeypatch, make_manifest, make_config):
    """Explains against a table of three variants, without an extension; records calls and the named build."""
    asked: dict = {}
    manifest = make_manifest(
        make_config(),
        make_config(kernel_schedule=KernelSchedule.MMA_SYNC),
        make_config(a_dtype=DType.S8, epilogue=EpilogueKind.SCALED_AZP_PER_TOKEN),
    )
    table = make_variant_table(manifest.entries, [entry.symbol for entry in manifest.entries], ())

    def explain(op: str, *tensors: torch.Tensor | None) -> Choice:
        schema = BY_NAME[op]
        call = operands.of_arguments(schema, tensors)
        checks.check(schema, call)
        asked["call"] = call
        return select(table, shaped_call_of(schema, call), 132)

    monkeypatch.setattr(package, "load", lambda build: asked.update(build=build), raising=False)
    monkeypatch.setattr(package, "explain", explain, raising=False)
    return asked


def test_explain_names_the_choice_and_why_not_the_others(gemmill, asked, make_config) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == f"{to_name(make_config())} (model)"
    assert "it fits, the model prefers another" in outcome.out
    assert (
        "it computes s8 x s8 to bf16 with zero points per tensor, the call needs e4m3 x e4m3 to bf16 with no bias"
        in outcome.out
    )
    assert asked["build"] is None
    call = asked["call"]
    assert (call["a"].shape, call["b"].shape, call["out"].shape) == ((16, 4096), (4096, 4096), (16, 4096))
    assert call["b"].strides == (1, 4096)
    assert call["a_scales"].shape == (16, 1) and call["b_scales"].shape == (1, 4096) and call["bias"] is None
    assert call["a"].dtype == "float8_e4m3fn" and call["out"].dtype == "bfloat16"


def test_explain_as_json(gemmill, asked, make_config) -> None:
    outcome = gemmill(
        "explain", "cutlass_scaled_mm", "-m", 16, "-n", 64, "-k", 4100, "--json", "--build", "0123abcd4567"
    )
    explained = json.loads(outcome.out)
    assert explained["op"] == "cutlass_scaled_mm" and explained["trust"] == "model"
    assert explained["chosen"] == to_name(make_config(kernel_schedule=KernelSchedule.MMA_SYNC))
    assert explained["rejected"][0] == {
        "name": to_name(make_config()),
        "reason": "it needs a aligned to 16 bytes, its address or row stride is aligned to 4",
    }
    assert asked["build"] == "0123abcd4567"


def test_explain_describes_every_operand(gemmill, asked) -> None:
    gemmill(
        *(
            "explain",
            "cutlass_scaled_mm_azp",
            "-m",
            7,
            "-n",
            24,
            "-k",
            32,
            "--dtype",
            "s8",
            "--out",
            "f16",
            "--azp",
            "token",
        ),
        *("--per-tensor", "--one-b-scale", "--bias", "--lda", 48, "--ldb", 64, "--ldd", 40),
    )
    call = asked["call"]
    assert {name: operand.shape for name, operand in call.items()} == {
        "out": (7, 24),
        "a": (7, 32),
        "b": (32, 24),
        "a_scales": (1,),
        "b_scales": (1,),
        "azp_adj": (24,),
        "azp": (7,),
        "bias": (24,),
    }
    assert (call["a"].strides, call["b"].strides, call["out"].strides) == ((48, 1), (1, 64), (40, 1))
    assert {call[name].dtype for name in ("a", "b")} == {"int8"}
    assert {call[name].dtype for name in ("out", "bias")} == {"float16"}
    assert {call[name].dtype for name in ("azp", "azp_adj")} == {"int32"}


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("f16", "float16")])
def test_explain_of_16_bit_operands_has_results_of_their_type(gemmill, asked, dtype: str, name: str) -> None:
    gemmill("explain", "cutlass_scaled_mm", "-m", 7, "-n", 24, "-k", 32, "--dtype", dtype, "--bias")
    assert {asked["call"][operand].dtype for operand in ("a", "b", "out", "bias")} == {name}
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 7, "-n", 24, "-k", 32, "--dtype", "bf16", "--out", "f16")
    assert (outcome.code, outcome.err) == (
        2,
        "gemmill: cutlass_scaled_mm: out is float16, expected bfloat16 as a and b are\n",
    )


def test_explain_with_the_zero_point_in_azp_adj(gemmill, asked) -> None:
    gemmill("explain", "cutlass_scaled_mm_azp", "-m", 7, "-n", 24, "-k", 32, "--dtype", "s8", "--azp", "tensor")
    assert asked["call"]["azp"] is None and asked["call"]["azp_adj"].shape == (24,)


def test_explain_of_a_call_that_nothing_takes(gemmill, asked) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 64, "-k", 64, "--out", "f16")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == "no variant takes this call"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["cutlass_scaled_mm", "--azp", "token"],
            "cutlass_scaled_mm with --azp token: cutlass_scaled_mm takes none, cutlass_scaled_mm_azp takes tensor or token",
        ),
        (
            ["cutlass_scaled_mm_azp"],
            "cutlass_scaled_mm_azp with --azp none: cutlass_scaled_mm takes none, cutlass_scaled_mm_azp takes tensor or token",
        ),
        (["fused_mm"], "no op 'fused_mm' to explain: there are OPS"),
        (["silu_and_mul_quant", "--hidden", "8"], "silu_and_mul_quant wants -m and --hidden, and neither -n nor -k"),
        (["cutlass_scaled_mm", "--hidden", "8"], "cutlass_scaled_mm wants -m, -n and -k, and no --hidden"),
        (
            ["cutlass_scaled_mm", "--ldd", "8"],
            "cutlass_scaled_mm: out has row stride 8 for rows of 16: its rows overlap",
        ),
    ],
)
def test_explain_refuses_what_the_op_refuses(gemmill, asked, arguments, sentence) -> None:
    outcome = gemmill("explain", *arguments, "-m", 16, "-n", 16, "-k", 16)
    told = sentence.replace("OPS", ", ".join(BY_NAME))  # with those of epilogues that another test has brought
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"gemmill: {told}\n")


@pytest.fixture
def asked_of_quant(monkeypatch, make_manifest):
    """Explains against a table of all quantisation variants, without an extension."""
    manifest = make_manifest(*quant_configs(Arch.SM90A))
    table = make_variant_table(manifest.entries, [entry.symbol for entry in manifest.entries], ())

    def explain(op: str, *arguments: object) -> Choice:
        call = operands.of_arguments(BY_NAME[op], arguments)
        return select(table, serving_of(BY_NAME[op]).asked(checks.check(BY_NAME[op], call)), 132)

    monkeypatch.setattr(package, "load", lambda build: None, raising=False)
    monkeypatch.setattr(package, "explain", explain, raising=False)


@pytest.mark.parametrize(
    ("arguments", "variant"),
    [
        (["static_scaled_fp8_quant"], "static_bf16_e4m3_none_f32_sym"),
        (["dynamic_scaled_fp8_quant", "--dtype", "f32"], "tensor_f32_e4m3_none_f32_sym"),
        (["dynamic_scaled_int8_quant", "--azp", "token"], "token_bf16_s8_none_f32_asym"),
        (["static_scaled_int8_quant", "--azp", "tensor"], "static_bf16_s8_none_f32_asym"),
        (["per_token_group_fp8_quant", "--group", "32", "--ue8m0"], "group_bf16_e4m3_none_g32f32pow2_sym"),
        (["per_token_group_fp8_quant_packed"], "group_bf16_e4m3_none_g128ue8m0x4_sym"),
        (["per_token_group_quant_int8", "--scales-m-major"], "group_bf16_s8_none_g128f32_sym"),
        (["silu_and_mul_per_block_quant", "--out", "s8", "--scales-m-major"], "group_bf16_s8_silu_g128f32_sym"),
        (["rms_norm_per_block_quant", "--dtype", "f16", "--group", "64"], "rmsgroup_f16_e4m3_none_g64f32_sym"),
        (
            ["act_and_mul_per_block_quant", "--activation", "gelu", "--ue8m0"],
            "group_bf16_e4m3_geluerf_g128f32pow2_sym",
        ),
        (["act_and_mul_per_token_quant", "--activation", "gelu_tanh"], "token_bf16_e4m3_gelutanh_f32_sym"),
    ],
)
def test_explain_of_quantisation_ops(gemmill, asked_of_quant, arguments, variant) -> None:
    outcome = gemmill("explain", *arguments, "-m", 6, "--hidden", 256)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == f"sm90a_quant_{variant} (only)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["silu_and_mul_quant", "--group", "64"], "silu_and_mul_quant with --group: it takes result, input, scale"),
        (
            ["silu_and_mul_quant", "--scales-m-major"],
            "silu_and_mul_quant with --scales-m-major: its scales are not of groups",
        ),
        (
            ["act_and_mul_quant", "--activation", "relu"],
            "act_and_mul_quant: activation is 'relu', expected 'silu', 'gelu_tanh' or 'gelu'",
        ),
        (
            ["silu_and_mul_per_block_quant", "--group", "16"],
            "silu_and_mul_per_block_quant: group_size is 16, expected 32 or 64 or 128",
        ),
    ],
)
def test_explain_refuses_what_a_quantisation_op_refuses(gemmill, asked_of_quant, arguments, sentence) -> None:
    outcome = gemmill("explain", *arguments, "-m", 6, "--hidden", 256)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"gemmill: {sentence}\n")


def test_explain_without_a_build(gemmill, home) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 1, "-n", 1, "-k", 1)
    assert outcome.code == 3 and outcome.err.startswith("gemmill: no build of gemmill")


GOOD = Verdict(name="good", cases=12, failures=(), worst_fraction=0.25)
BAD = Verdict(
    name="bad", cases=12, failures=("M, N, K = 1, 1, 1: 1 of 1 elements are wrong", "more"), worst_fraction=3.5
)


@pytest.fixture
def quick(monkeypatch):
    """verify --quick on whatever verdicts are put in the list."""
    verdicts = [GOOD]
    monkeypatch.setattr(package, "load", lambda build: None, raising=False)
    monkeypatch.setattr(layer, "verify_ops", lambda: iter(verdicts))
    monkeypatch.setattr(layer, "device_words", lambda: "on a fake device")
    return verdicts


def test_verify_prints_a_table(gemmill, quick) -> None:
    outcome = gemmill("verify", "--quick")
    assert (outcome.code, outcome.err) == (0, "")
    assert "1 verified on a fake device" in outcome.out
    assert any(line.split() == ["good", "12", "0", "0.25"] for line in outcome.out.splitlines())


def test_verify_fails_with_code_1_and_the_first_failure(gemmill, quick) -> None:
    quick.append(BAD)
    outcome = gemmill("verify", "--quick")
    assert (outcome.code, outcome.err) == (1, "gemmill: bad: M, N, K = 1, 1, 1: 1 of 1 elements are wrong\n")
    verified = json.loads(gemmill("verify", "--quick", "--json").out)
    assert (verified["ok"], verified["where"]) == (False, "on a fake device")
    assert verified["verdicts"][1]["failures"] == list(BAD.failures)


def test_verify_without_a_gpu_says_what_can_be_done(gemmill, put_build, make_config, monkeypatch) -> None:
    put_build(make_config())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = gemmill("verify")
    assert (outcome.code, outcome.out) == (3, "")
    assert (
        outcome.err
        == "gemmill: verify runs kernels and torch finds no GPU: `gemmill verify --quick` runs each op's CPU reference\n"
    )


def test_verify_hands_on_the_filtered_names(gemmill, put_build, make_config, monkeypatch) -> None:
    manifest = put_build(make_config(), make_config(stages=3))
    given = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loaded = SimpleNamespace(build_id=manifest.build_id, manifest=manifest)
    monkeypatch.setattr(package, "load", lambda build: loaded, raising=False)
    monkeypatch.setattr(layer, "device_words", lambda: "on a fake device")
    monkeypatch.setattr(layer, "verify_variants", lambda build, names: given.append((build, names)) or iter([GOOD]))
    assert gemmill("verify", "--filter", "stages=3").code == 0
    assert given == [(loaded, frozenset({to_name(make_config(stages=3))}))]
    monkeypatch.setattr(layer, "verify_variants", lambda build, names: iter([]))
    outcome = gemmill("verify")
    assert (
        outcome.code == 3
        and outcome.err == "gemmill: no variant of build 0123abcd4567 for sm90a runs on a fake device\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the ops would run kernels")
def test_the_cpu_reference_verifies_itself() -> None:
    verdicts = list(layer.verify_ops())
    of_pairs = [name for name, _ in cases_of_op("fp4_weight_mm").once()]
    assert len(of_pairs) == 28
    assert [verdict.name for verdict in verdicts] == [
        "cutlass_scaled_mm e4m3",
        "cutlass_scaled_mm s8",
        "cutlass_scaled_mm bf16",
        "cutlass_scaled_mm_azp s8",
        "cutlass_scaled_mm e4m3 in groups",
        "scaled_mm_zero_points s8",
        *(op.name for config in smoke_quant_configs(Arch.SM90A) for op in QUANT_OPS if op.serves(config)),
        *of_pairs,
        "hadamard_transform",
        "kv_compress",
        "kv_decode_attention",
        "kv_decompress",
        "kv_compress_keys",
        "kv_compress_values",
        "kv_decompress_keys",
        "kv_decompress_values",
        "kv_attention_scores",
        "kv_attention",
        "kv_attention in slots",
        "grouped_mm of bf16",
        "grouped_mm_masked of bf16",
        "grouped_mm",
        "grouped_mm_masked",
        "grouped_mm with groups",
        "grouped_mm_masked with groups",
        "grouped_mm of bf16, gathered",
        "grouped_mm, gathered",
        "grouped_mm with groups, gathered",
        *(
            f"{op} of {format} by bf16{gathered}"
            for format in ("nvfp4", "mxfp4")
            for op, gathered in (
                ("grouped_fp4_mm", ""),
                ("grouped_fp4_mm", ", gathered"),
                ("grouped_fp4_mm_masked", ""),
            )
        ),
        "scaled_mm_act_quant to bf16",
        "scaled_mm_act_quant to e4m3group128",
        "cutlass_scaled_sparse_mm e4m3",
        "cutlass_scaled_sparse_mm s8",
        "cutlass_scaled_sparse_mm_azp s8",
        "fused_experts with groups",
        "router_topk bf16",
        "router_topk f16",
    ]
    assert all(verdict.cases == 1 and not verdict.failures for verdict in verdicts)
    assert layer.device_words() == "with the CPU reference: there is no GPU that torch can use, so no kernel was run"


@pytest.mark.parametrize(
    ("options", "a_scales", "b_scales"),
    [
        ((), ((6, 5), (5, 1)), ((5, 3), (1, 5))),
        (("--b-scales", "rows"), ((6, 5), (5, 1)), ((5, 300), (1, 5))),
        (("--scales-m-major",), ((6, 5), (1, 8)), ((5, 3), (1, 5))),
    ],
)
def test_explain_asks_about_groups(gemmill, asked, options, a_scales, b_scales) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 6, "-n", 300, "-k", 600, "--group", 128, *options)
    assert (outcome.code, outcome.err) == (0, "")
    call = asked["call"]
    assert [(call[name].shape, call[name].strides) for name in ("a_scales", "b_scales")] == [a_scales, b_scales]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--group", 16), "with --group 16: groups have 128, 64 or 32 elements"),
        (("--b-scales", "rows"), "with --b-scales and no --group: its scales are not of groups"),
        (("--scales-m-major",), "with --scales-m-major and no --group: its scales are not of groups"),
        (
            ("--group", 128, "--per-tensor"),
            "with --group and --per-tensor: scales are of groups or of the whole tensor",
        ),
        (
            ("--group", 128, "--one-b-scale"),
            "with --group and --one-b-scale: scales are of groups or of the whole tensor",
        ),
    ],
)
def test_options_of_groups_that_do_not_go_together(gemmill, asked, options, sentence) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 6, "-n", 300, "-k", 600, *options)
    assert (outcome.code, outcome.err) == (2, f"gemmill: cutlass_scaled_mm {sentence}\n")


@pytest.mark.parametrize(("rows", "is_apart"), [(64, True), (4096, False)])
def test_explain_says_that_a_call_runs_its_parts(
    gemmill, monkeypatch, make_manifest, make_config, rows: int, is_apart: bool
) -> None:
    entries = make_manifest(make_config(epilogue=EpilogueKind.SCALED_BIAS), *gated_configs(Arch.SM90A)).entries
    table = make_variant_table(entries, [entry.symbol for entry in entries], ())

    def explain(op: str, *tensors: torch.Tensor | None) -> Choice:
        schema = BY_NAME[op]
        judged = checks.check(schema, operands.of_arguments(schema, tensors))
        return select(table, serving_of(schema).asked(judged), 132)

    monkeypatch.setattr(package, "load", lambda _: None, raising=False)
    monkeypatch.setattr(package, "explain", explain, raising=False)
    call = ("explain", "scaled_mm_act_quant", "-m", rows, "-n", 73728, "-k", 7168, "--group", 128)
    said = "runs its parts: launches variants that the family scaled_mm chooses, then a kernel of its own"
    assert (said in gemmill(*call).out) is is_apart
    assert json.loads(gemmill(*call, "--json").out)["launches"] == ("scaled_mm" if is_apart else None)
