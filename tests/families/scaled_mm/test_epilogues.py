"""Users' epilogues on a CPU: tracing and its refusals, the op, its reference and its bounds, names, kernels and the command."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmill
from gemmill.arithmetic import scaled_sums
from gemmill.cli import main as command
from gemmill.emit import emit
from gemmill.epilogue import (
    Column,
    ColumnOut,
    ColumnS32,
    Epilogue,
    Row,
    RowOut,
    RowS32,
    Scalar,
    UntraceableError,
    Value,
    as_float,
    epilogue,
    erf,
    exp,
    exp2,
    fma,
    log,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    where,
)
from gemmill.families.scaled_mm import own, selections
from gemmill.families.scaled_mm.bounds import outside_of_own, own_interval
from gemmill.families.scaled_mm.cases.own import OwnCase, of_config
from gemmill.families.scaled_mm.classes import class_of, classes_of, describe_class
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.reference import own_mm
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.gemm.standard import standard
from gemmill.gemm.traced import Kind, Stored, known, learn, of_text
from gemmill.gemm.tracing import trace
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, Backend, DType, EpilogueKind, TileScheduler

HERE = Path(__file__)


@epilogue
def everything(
    acc: Value,
    a_scale: Row,
    shift: RowS32,
    gain: RowOut,
    b_scale: Column,
    bias: ColumnOut,
    other: ColumnS32,
    alpha: Scalar,
    limit: Scalar,
) -> Value:
    x = fma(a_scale, (acc - shift * other) * b_scale, bias) * gain
    x = minimum(maximum(x, -limit), limit)
    y = where(x > alpha, x * sigmoid(alpha * x), tanh(x) / (1 + abs(x)))
    z = where(x != 0, rsqrt(abs(x) + 1), exp(-abs(x)))
    return y + erf(x) * sqrt(abs(x)) - log(1 + exp2(-abs(x))) + z


@epilogue(operands=("s8",), results=("bf16", "f16"))
def integers(acc: Value, a_scale: Row, zero: RowS32, b_scale: Column, sums: ColumnS32) -> Value:
    return a_scale * (as_float(maximum(acc - zero * sums, 3)) * b_scale)


@epilogue
def biased(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut) -> Value:
    return fma(a_scale, acc * b_scale, bias)


@epilogue(results=("e4m3", "bf16"))
def codes(acc: Value, a_scale: Row, b_scale: Column, inverse: Scalar) -> Value:
    x = a_scale * (acc * b_scale)
    return x * sigmoid(x) * inverse


OWN = (everything, integers, biased, codes)


def kernels(of: Epilogue, arch: Arch = Arch.SM90A) -> list[own.OwnConfig]:
    return list(selections.with_epilogue(of.traced.text, of.operands, of.results, arch))  # type: ignore[arg-type]


def configs(of: Epilogue) -> list[own.OwnConfig]:
    return [config for config in kernels(of) if config.backend is Backend.CUTEDSL]


def visitors(of: Epilogue, arch: Arch = Arch.SM90A) -> list[own.OwnConfig]:
    return [config for config in kernels(of, arch) if config.backend is Backend.CUTLASS]


def cases(of: Epilogue) -> list[OwnCase]:
    return list(of_config(configs(of)[0]))


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(HERE.read_text().splitlines(), 1) if line.strip() == text)


# Tracing -------------------------------------------------------------------------------------------------------------


def test_a_trace_is_its_text() -> None:
    for of in OWN:
        assert of_text(of.traced.text) == of.traced == known(of.traced.key)
    assert biased.traced.steps[0].word == "mul" and len(biased.traced.steps) == 2
    assert everything.traced.digest != biased.traced.digest
    with pytest.raises(ValueError, match=r"^'\{\}' is no traced epilogue: KeyError: 'name'$"):
        of_text("{}")
    with pytest.raises(ValueError, match=r"^epilogue 'nonexdeadbeef' is not known here: import the module"):
        known("nonexdeadbeef")


def test_the_same_step_is_done_once() -> None:
    def twice(acc: Value, scale: Row) -> Value:
        return acc * scale + acc * scale

    assert [step.word for step in trace(twice, Kind.F32).steps] == ["mul", "add"]


def test_the_digest_follows_steps_and_names() -> None:
    def one(acc: Value, scale: Row) -> Value:
        return acc * scale

    def other(acc: Value, scale: Row) -> Value:
        return scale * acc

    first = trace(one, Kind.F32)
    assert trace(one, Kind.F32).digest == first.digest
    assert trace(other, Kind.F32).digest != first.digest
    assert replace(first, inputs=(replace(first.inputs[0], name="scales"),)).digest != first.digest


def condition(acc: Value, scale: Row) -> Value:
    if acc * scale > 0:
        return acc
    return scale


def number(acc: Value) -> Value:
    return math.exp(acc)  # type: ignore[arg-type,return-value]


def method(acc: Value) -> Value:
    return acc.relu()  # type: ignore[no-any-return]


def power(acc: Value) -> Value:
    return acc**2


def listed(acc: Value) -> Value:
    return sum(acc)  # type: ignore[call-overload,no-any-return]


def text(acc: Value) -> Value:
    return acc * "2"  # type: ignore[operator]


def chosen(acc: Value) -> Value:
    return where(acc, acc, 0.0)


def truth(acc: Value) -> Value:
    return (acc > 0) + 1.0


def nothing(acc: Value) -> Value:
    acc + 1
    return None  # type: ignore[return-value]


def compared(acc: Value) -> Value:
    return acc > 0


def raised(acc: Value) -> Value:
    return {}["key"]  # type: ignore[no-any-return]


def plain_argument(acc: Value, scale: float) -> Value:
    return acc * scale


def with_default(acc: Value, scale: Row = 1.0) -> Value:  # type: ignore[assignment]
    return acc * scale


def called_out(acc: Value, out: Row) -> Value:
    return acc * out


def five(acc: Value, p: Row, q: Row, r: Row, s: Row, t: Row) -> Value:
    return acc * p * q * r * s * t


REFUSED: dict[Callable[..., Any], tuple[str, str]] = {
    condition: (
        "if acc * scale > 0:",
        "it uses a value as a condition (if, while, and, or, not); where(test, x, y) takes one of two",
    ),
    number: (
        "return math.exp(acc)  # type: ignore[arg-type,return-value]",
        "it uses a value as a Python number, which it has not while it is traced; `gemmill.epilogue` has the functions that can be "
        "traced",
    ),
    method: (
        "return acc.relu()  # type: ignore[no-any-return]",
        "it asks a value for 'relu', which it has not; `gemmill.epilogue` has the functions that can be traced",
    ),
    power: ("return acc**2", "it uses **; multiply, or use exp and log"),
    listed: (
        "return sum(acc)  # type: ignore[call-overload,no-any-return]",
        "it goes through a value as through a list; a value is one element",
    ),
    text: (
        'return acc * "2"  # type: ignore[operator]',
        "it computes with a str; there are values and Python's numbers",
    ),
    chosen: ("return where(acc, acc, 0.0)", "it calls where of a test that is no comparison of values"),
    truth: (
        "return (acc > 0) + 1.0",
        "it computes with the result of a comparison; where(test, x, y) takes one of two",
    ),
    nothing: ("def nothing(acc: Value) -> Value:", "it returns a NoneType; the value to store is expected"),
    compared: ("def compared(acc: Value) -> Value:", "it returns a comparison; the value to store is expected"),
    raised: (
        'return {}["key"]  # type: ignore[no-any-return]',
        "it raises KeyError ('key'); it may use + - * / of values and numbers, comparisons, and the functions of gemmill.epilogue (exp, "
        "tanh, where, fma, ...)",
    ),
    plain_argument: (
        "def plain_argument(acc: Value, scale: float) -> Value:",
        "argument 'scale' is annotated as none of Row, Column, RowOut, ColumnOut, RowS32, ColumnS32 or Scalar",
    ),
    with_default: (
        "def with_default(acc: Value, scale: Row = 1.0) -> Value:  # type: ignore[assignment]",
        "it takes the accumulator, then named arguments without defaults",
    ),
    called_out: (
        "def called_out(acc: Value, out: Row) -> Value:",
        "an argument is called 'out', as one of the op's own",
    ),
    five: (
        "def five(acc: Value, p: Row, q: Row, r: Row, s: Row, t: Row) -> Value:",
        "it has 5 arguments along row; a kernel takes 4 of each",
    ),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_cannot_be_traced_is_named_with_its_line(function: Callable[..., Any]) -> None:
    at, why = REFUSED[function]
    with pytest.raises(UntraceableError) as told:
        epilogue(function)
    where_it_is = f"({HERE}, line {line_of(at)}: `{at}`)"
    assert str(told.value) == f"epilogue {function.__name__!r} cannot be traced {where_it_is}: {why}"


def test_a_value_of_another_trace_is_refused() -> None:
    kept: list[Value] = []

    def keeps(acc: Value) -> Value:
        kept.append(acc)
        return acc

    def uses(acc: Value) -> Value:
        return acc + kept[0]

    trace(keeps, Kind.F32)
    with pytest.raises(UntraceableError, match="it uses a value of another trace"):
        trace(uses, Kind.F32)


def test_dtypes_that_no_kernel_has() -> None:
    def product(acc: Value) -> Value:
        return acc

    with pytest.raises(ValueError, match=r"^epilogue 'product' is for operands e4m3, s8: it is s8 alone"):
        epilogue(operands=("e4m3", "s8"))(product)
    with pytest.raises(ValueError, match=r"^epilogue 'product' is for results f32: kernels store bf16, f16 and e4m3$"):
        epilogue(results=("f32",))(product)
    with pytest.raises(
        ValueError,
        match=r"^epilogue 'product' is for operands bf16 and results e4m3: e4m3 is stored of e4m3 operands alone$",
    ):
        epilogue(operands=("bf16",), results=("e4m3",))(product)


# What it computes ----------------------------------------------------------------------------------------------------


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
    assert made and {config.problem.a_dtype for config in made} == set(of.operands)
    assert {config.problem.out_dtype for config in made} == set(of.results) - {DType.E4M3}
    for config in made:
        assert parse_name(to_name(config)) == config
        assert REGISTRY.check(config), to_name(config)
        plan = Plan(config.compiled)
        words = len(plan.m_fields) * plan.group_m + len(plan.n_fields) * plan.group_n
        assert plan.vector_words == (0 if plan.split_k else words)
    predicate = own.accepted(made[0])
    assert predicate.ops == (of.name,) and own.brought(predicate) == of.traced.text


@pytest.mark.parametrize("arch", Arch)
def test_visitors(arch: Arch) -> None:
    assert not visitors(integers, arch) and not visitors(everything, arch), "they compute with int32"
    made = visitors(codes, arch)
    assert {config.problem.out_dtype for config in made} == {DType.E4M3, DType.BF16}
    for config in made:
        assert config.tag == own.VISITOR_TAG and parse_name(to_name(config)) == config
        assert REGISTRY.check(config), REGISTRY.check(config).reason
        assert config.schedule.alignment_d * config.problem.out_dtype.bits == 128
        assert next(of_config(config)).op == codes.name
    (told,) = {
        class_of(code)
        for config in made
        for code in classes_of(own.accepted(config))
        if class_of(code).out is DType.E4M3
    }
    assert (told.operand, told.own) == (DType.E4M3, own.class_of_epilogue(codes.traced))


def test_what_visitors_cannot_do() -> None:
    config = next(config for config in visitors(codes) if config.problem.out_dtype is DType.E4M3)
    of_integers = replace(config, problem=replace(config.problem, own=everything.traced.key))
    assert REGISTRY.check(of_integers).reason == (
        f"epilogue {everything.traced.key!r} computes with int32: CUTLASS's visitors take float32 alone, cutedsl takes both"
    )
    split = replace(config, schedule=replace(config.schedule, tile_scheduler=TileScheduler.SPLIT_K))
    assert REGISTRY.check(split).reason == "pingpong with splitk is no collective of CUTLASS's: it has no visitors"
    of_dsl = replace(config, backend=Backend.CUTEDSL)
    assert REGISTRY.check(of_dsl).reason == "out e4m3 of e4m3 operands is not offered: it is bf16 or f16"


def test_a_visitor_has_each_step_once() -> None:
    def steps(acc: Value, gain: RowOut, at: Scalar) -> Value:
        x = -abs(acc) / gain + 1.5
        return where(x >= at, x, maximum(tanh(acc), float("-inf")))

    (config, *_) = visitors(epilogue(results=("e4m3",))(steps))
    text = emit(config).text
    for line in (
        "float const v1 = row0[i];",
        "float const v2 = given.scalar0;",
        "auto const v3 = fabsf(v0);",
        "auto const v4 = -v3;",
        "auto const v5 = v4 / v1;",
        "auto const v6 = __uint_as_float(0x3FC00000u);",
        "auto const v8 = v7 >= v2;",
        "auto const v10 = __uint_as_float(0xFF800000u);",
        "auto const v11 = fmaxf(v9, v10);",
        "auto const v12 = v8 ? v7 : v11;",
        "d[i] = v12;",
        "epilogue::Node<Steps, ElementD, float, epilogue::Accumulator, AlongM<ElementD>>;",
        "return {accumulator, row0, {x.scalar0}};",
    ):
        assert text.count(line) == 1, line


def test_codes_saturate() -> None:
    a = torch.tensor([[448.0], [-448.0], [1.0], [float("nan")]]).to(torch.float8_e4m3fn)
    out = codes(
        a,
        torch.ones(1, 1).to(torch.float8_e4m3fn),
        torch.ones(4),
        torch.full((1,), 2.0),
        -3.0,
        out_dtype=torch.float8_e4m3fn,
    )
    assert out.dtype is torch.float8_e4m3fn and out.float()[:2].flatten().tolist() == [-448.0, 0.0]
    assert out.float()[2].item() == -5.5 and out.float()[3].isnan().item()
    alone = epilogue(results=("e4m3",))(codes.function)
    assert (
        alone(a, torch.ones(1, 1).to(torch.float8_e4m3fn), torch.ones(4), torch.ones(1), 1.0).dtype
        is torch.float8_e4m3fn
    )


def test_bounds_find_a_neighbouring_code() -> None:
    case = next(of_config(next(c for c in visitors(codes) if c.problem.out_dtype is DType.E4M3)))
    given, _ = replace(case, product=replace(case.product, data="integers"))._made(torch.device("cpu"))
    given["out"].copy_(own_mm(codes.traced, given))
    ends = own_interval(codes.traced, given, Accumulation.EXACT)
    assert not outside_of_own(given["out"], ends).any()
    moved = (given["out"].view(torch.uint8) ^ 1).view(torch.float8_e4m3fn)
    assert outside_of_own(moved, ends).double().mean() > 0.9


def test_what_was_measured_of_the_standard_epilogue_serves() -> None:
    config = configs(biased)[0]
    measured = selections._config(
        selections._problem(DType.E4M3, DType.BF16), ((128, 80, 128), (2, 1, 1), config.schedule.kernel_schedule)
    )
    offered = TUNING.offers(selections.with_dsl(measured))
    (number,) = classes_of(own.accepted(config))
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


def test_what_a_build_brings_is_learnt_by_reading_it() -> None:
    """A manifest is read where nobody has the function: its predicate has all steps."""
    traced = replace(biased.traced, name="from_afar")
    with pytest.raises(ValueError, match="is not known here"):
        known(traced.key)
    predicate = replace(own.accepted(configs(biased)[0]), epilogue=traced.text)
    assert known(traced.key) == traced == predicate.traced
    assert learn(traced) == traced
