"""The ops on CPU tensors, their fakes, and the questions that a build answers."""

import gc
from dataclasses import replace

import pytest
import torch

import gemmill
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.ops import SCALED_MM
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.manifest import ManifestError
from gemmill.runtime import ops
from gemmill.runtime.choosing import Trust
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import to_name
from gemmill.vocab import Backend


def random_s8(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def operands(m: int = 5, n: int = 7, k: int = 11) -> list[torch.Tensor]:
    """a, b, a_scales, b_scales of int8."""
    generator = torch.Generator().manual_seed(1)
    scales = (torch.rand(m, 1, generator=generator) + 0.1, torch.rand(1, n, generator=generator) + 0.1)
    return [random_s8(m, k, seed=2), random_s8(n, k, seed=3).t(), *scales]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_give_the_reference(dtype) -> None:
    given, bias = operands(), torch.arange(7).to(dtype)
    result = gemmill.cutlass_scaled_mm(*given, dtype, bias)
    assert torch.equal(result, scaled_mm(*given, dtype, bias))
    azp_adj, azp = torch.arange(7, dtype=torch.int32), torch.arange(5, dtype=torch.int32)
    result = gemmill.cutlass_scaled_mm_azp(*given, dtype, azp_adj, azp, bias)
    assert torch.equal(result, scaled_mm(*given, dtype, bias, azp_adj=azp_adj, azp=azp))
    assert not torch.equal(result, scaled_mm(*given, dtype, bias)), "zero points make a difference in this data"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_of_16_bits_with_scales_of_one_are_the_plain_product(dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((5, 11), (7, 11)))
    one = torch.ones(1)
    exact = a.double() @ b.double().t()
    assert torch.equal(gemmill.cutlass_scaled_mm(a, b.t(), one, one, dtype), exact.float().to(dtype))


@pytest.mark.parametrize("shape", [(0, 7, 11), (5, 0, 11), (5, 7, 0)])
def test_zero_sizes(shape) -> None:
    m, n, _ = shape
    result = gemmill.cutlass_scaled_mm(*operands(*shape), torch.bfloat16)
    assert result.shape == (m, n) and not result.any()


def test_compiled() -> None:
    def model(a, b, a_scales, b_scales, azp_adj, bias):
        first = gemmill.cutlass_scaled_mm(a, b, a_scales, b_scales, torch.bfloat16, bias)
        second = gemmill.cutlass_scaled_mm_azp(a, b, a_scales, b_scales, torch.bfloat16, azp_adj, None, bias)
        return first.float() + second

    given = [*operands(), torch.arange(7, dtype=torch.int32), torch.ones(7, dtype=torch.bfloat16)]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*given), model(*given))
    other = [*operands(m=3), *given[4:]]
    assert torch.equal(compiled(*other), model(*other)), "another number of rows"


@pytest.mark.parametrize("op", ["cutlass_scaled_mm", "cutlass_scaled_mm_azp"])
def test_opcheck(op: str) -> None:
    out, bias = torch.zeros(5, 7, dtype=torch.bfloat16), torch.ones(7, dtype=torch.bfloat16)
    zero_points = [torch.ones(7, dtype=torch.int32), None] if op == "cutlass_scaled_mm_azp" else []
    torch.library.opcheck(getattr(torch.ops.gemmill, op).default, (out, *operands(), *zero_points, bias))


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.empty(5, 11, dtype=torch.int8), torch.empty(7, 11, dtype=torch.int8).t()
        result = gemmill.cutlass_scaled_mm(a, b, torch.empty(1), torch.empty(1), torch.float16)
    assert (result.shape, result.dtype, result.device.type) == ((5, 7), torch.float16, "cpu")


def test_variants(smoke_build, smoke_configs) -> None:
    assert [entry.name for entry in gemmill.variants()] == [to_name(config) for config in smoke_configs]
    with_azp = gemmill.variants(op="cutlass_scaled_mm_azp")
    assert with_azp and all(entry.config.epilogue.takes_azp for entry in with_azp)
    with_zero_points = gemmill.variants(op="scaled_mm_zero_points")
    assert len(gemmill.variants(op="cutlass_scaled_mm")) + len(with_azp) + len(with_zero_points) == len(smoke_configs)
    assert gemmill.variants(arch="sm90a") == gemmill.variants() and gemmill.variants(arch="sm100a") == []
    with pytest.raises(ValueError, match=r"^no op 'other': there are .*cutlass_scaled_mm, "):
        gemmill.variants(op="other")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"op": "cutlass_scaled_mm"}, True),
        ({"op": "cutlass_scaled_mm", "dtype": "e4m3"}, True),
        ({"op": "cutlass_scaled_mm", "dtype": torch.float8_e4m3fn, "out_dtype": torch.float16}, True),
        ({"op": "cutlass_scaled_mm", "dtype": torch.int8, "arch": "sm90a"}, True),
        ({"op": "cutlass_scaled_mm", "dtype": torch.float16, "out_dtype": torch.float16}, True),
        ({"op": "cutlass_scaled_mm", "dtype": "bf16", "out_dtype": "f16"}, False),
        ({"op": "cutlass_scaled_mm", "dtype": torch.float8_e5m2}, False),
        ({"op": "cutlass_scaled_mm", "out_dtype": torch.float32}, False),
        ({"op": "cutlass_scaled_mm", "dtype": "e4m3", "arch": "sm120f"}, False),
        ({"op": "cutlass_scaled_mm_azp", "dtype": "s8", "out_dtype": "bf16"}, True),
        ({"op": "cutlass_scaled_mm_azp", "dtype": "e4m3"}, False),
        ({"op": "grouped_mm", "dtype": "float8_e4m3fn"}, False),
    ],
)
def test_supports(question: dict, answer: bool, smoke_build) -> None:
    assert gemmill.supports(**question) is answer


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"op": "cutlass_moe_mm"}, r"^no op 'cutlass_moe_mm': there are .*cutlass_scaled_mm, "),
        (
            {"op": "cutlass_scaled_mm", "dtype": "fp8"},
            r"^no dtype 'fp8': there are .*e4m3.*, and torch's names, such as float8_e4m3fn$",
        ),
        ({"op": "cutlass_scaled_mm", "out_dtype": "half precision"}, r"^no dtype 'half precision': there are "),
    ],
)
def test_questions_about_an_op_or_a_dtype_that_there_is_not(question: dict, sentence: str, smoke_build) -> None:
    with pytest.raises(ValueError, match=sentence):
        gemmill.supports(**question)


def call(a_scales: torch.Tensor | None = None) -> list[torch.Tensor | None]:
    a, b, given, b_scales = operands(16, 64, 128)
    return [torch.zeros(16, 64, dtype=torch.bfloat16), a, b, given if a_scales is None else a_scales, b_scales, None]


def test_explain(smoke_build, smoke_configs) -> None:
    choice = gemmill.explain("cutlass_scaled_mm", *call())
    assert accepted(choice.entry.config).a_dtype == "s8" and choice.trust is Trust.MODEL
    assert len(choice.trace) == len(smoke_configs) - 1
    with pytest.raises(
        RuntimeError,
        match=r"^cutlass_scaled_mm: a_scales is \[3\] and b_scales is \[1, 64\]: for M, N, K = 16, 64, 128 expected",
    ):
        gemmill.explain("cutlass_scaled_mm", *call(a_scales=torch.ones(3)))
    with pytest.raises(ValueError) as caught:
        gemmill.explain("cutlass_moe_mm")
    assert str(caught.value) == "no op 'cutlass_moe_mm': there are " + ", ".join(BY_NAME)


def test_pinned_variant(smoke_build, smoke_configs) -> None:
    s8, e4m3 = (next(to_name(c) for c in smoke_configs if c.operands.a_dtype == dtype) for dtype in ("s8", "e4m3"))
    with gemmill.use_variant(s8) as entry:
        assert entry.name == s8
        choice = gemmill.explain("cutlass_scaled_mm", *call())
        assert (choice.entry.name, choice.trust) == (s8, Trust.PINNED)
        with gemmill.use_variant(e4m3):
            choice = gemmill.explain("cutlass_scaled_mm", *call())
            assert choice.entry is None and choice.trace[0].name == e4m3
            assert choice.trace[0].reason == (
                "it computes e4m3 x e4m3 to bf16 with no bias, the call needs s8 x s8 to bf16 with no bias"
            )
        assert gemmill.explain("cutlass_scaled_mm", *call()).entry.name == s8
    assert smoke_build.pinned == -1
    assert gemmill.explain("cutlass_scaled_mm", *call()).trust is Trust.MODEL


def test_pin_ends_with_an_exception(smoke_build, smoke_configs) -> None:
    with pytest.raises(KeyError), gemmill.use_variant(to_name(smoke_configs[1])):
        assert smoke_build.pinned >= 0
        raise KeyError
    assert smoke_build.pinned == -1


def test_variant_that_is_not_loaded(smoke_build, smoke_configs) -> None:
    with pytest.raises(ValueError) as caught, gemmill.use_variant("nosuch"):
        pass
    assert str(caught.value) == (
        f"variant 'nosuch' is not in build 0123abcd4567: gemmill.variants() lists its {len(smoke_configs)}"
    )


def test_misaligned_operands_go_to_a_slower_variant(smoke_build) -> None:
    out, _, b, a_scales, b_scales, _ = call()
    shifted = torch.zeros(16 * 128 + 1, dtype=torch.int8)[1:].view(16, 128)
    choice = gemmill.explain("cutlass_scaled_mm", out, shifted, b, a_scales, b_scales, None)
    assert choice.entry.config.design.kernel_schedule == "mmasync"
    reasons = {r.reason for r in choice.trace if "s8_s8" in r.name and "scaledbias" in r.name and "_bf16_" in r.name}
    assert reasons == {"it needs a aligned to 16 bytes, its address or row stride is aligned to 1"}


def test_refusal_of_a_call_that_no_variant_takes(smoke_build, smoke_configs, make_manifest, table_of) -> None:
    """The extension comes to Python for this text: here with the facts that it would report."""
    aligned = [c for c in smoke_configs if c.operands.a_dtype == "s8" and c.design.alignment_a > 1]
    aligned += [replace(c, backend=Backend.CUTLASS) for c in aligned if c.tag == "cutedsl"]
    smoke_build.manifest, smoke_build.table = make_manifest(*aligned), table_of(*aligned)
    out, _, *rest = call()
    facts = facts_of([out, torch.zeros(16, 132, dtype=torch.int8)[:, :128], *rest])
    message = smoke_build._refusal(SCALED_MM, facts)
    head, *trace = message.splitlines()
    assert head == (
        "cutlass_scaled_mm: no variant of build 0123abcd4567 takes M, N, K = 16, 64, 128 with a, b, out aligned to "
        "4, 16, 16 bytes; `gemmill build --arch sm90a --select default` builds one for every shape"
    )
    reason = "it needs a aligned to 16 bytes, its address or row stride is aligned to 4"
    fits_but_for_a = [c for c in aligned if "cutlass_scaled_mm" in accepted(c).ops]
    assert f"  {len(fits_but_for_a)} variants: {reason}" in trace
    assert sum(int(line.split()[0]) for line in trace) == len(aligned)
    smoke_build.pin(0)
    assert smoke_build._refusal(SCALED_MM, facts) == (
        f"cutlass_scaled_mm: the pinned variant {to_name(aligned[0])} cannot take the call: "
        "it needs a aligned to 16 bytes, its address or row stride is aligned to 4"
    )


def facts_of(tensors: list[torch.Tensor | None]) -> list[int]:
    codes = {torch.int8: 1, torch.bfloat16: 15, torch.float32: 6}
    facts = []
    for tensor in tensors:
        facts.append(int(tensor is not None))
        if tensor is not None:
            facts += [codes[tensor.dtype], 0, -1, tensor.data_ptr(), 0, tensor.dim(), *tensor.shape, *tensor.stride()]
    return facts


def test_a_choice_without_reasons_is_the_same(smoke_build, monkeypatch) -> None:
    traced = gemmill.explain("cutlass_scaled_mm", *call())
    monkeypatch.setattr("gemmill.runtime.select._trace", None)
    assert traced.trace and ops.choice_of("cutlass_scaled_mm", *call()) == replace(traced, trace=())


def test_loading_leaves_pythons_collector_as_it_was(monkeypatch) -> None:
    meanwhile = []

    def found(build: object) -> None:
        meanwhile.append(gc.isenabled())
        raise ManifestError("no build")

    monkeypatch.setattr(ops, "_found", found)
    try:
        for before in (gc.enable, gc.disable):
            before()
            was_on = gc.isenabled()
            with pytest.raises(ManifestError):
                ops.load()
            assert gc.isenabled() is was_on
    finally:
        gc.enable()
    assert meanwhile == [False, False]


def test_explain_takes_what_functions_take(smoke_build) -> None:
    """Positional, by name, and with the results that an op is given."""
    out, a, b, a_scales, b_scales, _ = call()
    wanted = gemmill.explain("cutlass_scaled_mm", out, a, b, a_scales, b_scales, None)
    bias = torch.zeros(64, dtype=torch.bfloat16)
    for given, named in (
        ((a, b, a_scales, b_scales, torch.bfloat16), {}),
        ((a, b), {"a_scales": a_scales, "b_scales": b_scales, "out_dtype": torch.bfloat16, "bias": None}),
        ((), {"out": out, "a": a, "b": b, "a_scales": a_scales, "b_scales": b_scales, "bias": None}),
    ):
        assert gemmill.explain("cutlass_scaled_mm", *given, **named) == wanted
    other = gemmill.explain("cutlass_scaled_mm", a, b, a_scales, b_scales, torch.float16, bias=bias.half())
    assert other.entry is None or accepted(other.entry.config).out_dtype == "f16"
    with pytest.raises(RuntimeError, match=r"^cutlass_scaled_mm: bias is bfloat16, expected float16"):
        gemmill.explain("cutlass_scaled_mm", a, b, a_scales, b_scales, torch.float16, bias)


def test_explain_of_a_quantisation_function(smoke_build, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(smoke_build, "explain", lambda op, call, *_, **__: asked.append((op.name, call)), raising=False)
    x = torch.zeros(4, 256, dtype=torch.bfloat16)
    gemmill.explain("per_token_group_fp8_quant", x, 128, column_major_scales=True)
    ((name, told),) = asked
    assert name == "per_token_group_fp8_quant" and told["input"].shape == (4, 256)
    assert (
        told["output_q"].dtype == "float8_e4m3fn" and told["output_s"].strides == (1, 4) and told["group_size"] == 128
    )


def test_explain_of_arguments_that_nothing_takes(smoke_build) -> None:
    _, a, b, a_scales, b_scales, _ = call()
    takes = "cutlass_scaled_mm takes (out, a, b, a_scales, b_scales, bias), or as a function (a, b, a_scales, b_scales, out_dtype, bias, check); "
    for given, named, told in (
        ((a, b), {}, "got 2 arguments"),
        ((a, b, a_scales, b_scales, torch.bfloat16), {"biass": None}, "got 5 arguments and biass"),
    ):
        with pytest.raises(TypeError) as caught:
            gemmill.explain("cutlass_scaled_mm", *given, **named)
        assert str(caught.value) == takes + told
    with pytest.raises(TypeError) as caught:
        gemmill.explain("vllm_static_scaled_fp8_quant", a)
    assert str(caught.value).startswith("vllm_static_scaled_fp8_quant takes (") and str(caught.value).endswith(
        ", got 1 argument"
    )
