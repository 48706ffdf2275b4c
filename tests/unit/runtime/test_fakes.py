"""Calls without data: meta tensors, fake tensors, and traces of torch.compile. They are checked as calls with data are."""

import random
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import gemmill
from families.quant.random_calls import Breakage, some_call
from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME, OPS, OpSchema
from whole_calls import Call, moved, versions, whole_call

every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
ROUNDS = 40


def call_op(op: OpSchema, call: Call) -> None:
    getattr(torch.ops.gemmill, op.name).default(*call.values())


def on_meta(value: object) -> object:
    """A tensor without its data."""
    return moved(value, "meta") if isinstance(value, torch.Tensor) else value


@every_op
def test_one_meta_operand_is_refused_and_nothing_is_written(op: OpSchema) -> None:
    tensors = [name for name, value in whole_call(op).items() if isinstance(value, torch.Tensor)]
    for name in tensors:
        call = whole_call(op)
        call[name] = on_meta(call[name])
        before = versions(call)
        with pytest.raises(RuntimeError) as caught:
            call_op(op, call)
        found = re.fullmatch(
            rf"{op.name}: (\w+) is on (meta|cpu) and (\w+) is on (meta|cpu): all tensors must be on one device",
            str(caught.value),
        )
        assert found is not None, caught.value
        here, there = sorted((found.groups()[:2], found.groups()[2:]), key=lambda told: told[1])
        assert here[0] in tensors and (here[1], there) == ("cpu", (name, "meta"))
        assert versions(call) == before


@every_op
def test_calls_on_meta_alone_are_right(op: OpSchema) -> None:
    call_op(op, {name: on_meta(value) for name, value in whole_call(op).items()})


@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_a_call_without_data_is_refused_in_the_sentence_of_one_with_data(op: str) -> None:
    """But for overlaps in memory, which tensors without memory have not."""
    rng, schema, refused, mode = random.Random(op), BY_NAME[op], 0, FakeTensorMode()
    for _ in range(ROUNDS):
        arguments = some_call(op, rng, Breakage.SOME)
        try:
            checks.check(schema, operands.of_arguments(schema, arguments))
            expected = ""
        except RuntimeError as error:
            expected = str(error)
        if "overlaps" in expected and "in memory" in expected:
            continue
        call = dict(zip(schema.arguments, arguments, strict=True))
        for without_data in ({name: on_meta(value) for name, value in call.items()}, faked(call, mode)):
            found = ""
            try:
                call_op(schema, without_data)
            except RuntimeError as error:
                found = str(error)
            assert found == expected
        refused += bool(expected)
    assert refused > ROUNDS / 4


def faked(call: Call, mode: FakeTensorMode) -> Call:
    return {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in call.items()}


def test_fake_tensors_of_a_gpu_are_checked_without_one() -> None:
    with FakeTensorMode():
        a = torch.empty(5, 64, dtype=torch.int8, device="cuda")
        b, one = torch.empty(7, 64, dtype=torch.int8, device="cuda").t(), torch.ones(1, device="cuda")
        assert gemmill.cutlass_scaled_mm(a, b, one, one, torch.float16).device.type == "cuda"
        with pytest.raises(RuntimeError, match=r"^cutlass_scaled_mm: b_scales is on cpu and out is on cuda:0"):
            gemmill.cutlass_scaled_mm(a, b, one, torch.ones(1), torch.float16)
        with pytest.raises(RuntimeError, match=r"^cutlass_scaled_mm: a is \[M, K\] = \[5, 64\] and b is \[K, N\] = "):
            gemmill.cutlass_scaled_mm(a, torch.empty(32, 7, device="cuda"), one, one, torch.float16)


def layer(x: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor) -> torch.Tensor:
    """Quantised activations times quantised weights, with scales per token and in groups."""
    codes, scales = gemmill.dynamic_per_token_scaled_fp8_quant(x)
    channels = weight_scales[:1, :1].expand(1, weight.shape[1]).contiguous()
    per_token = gemmill.cutlass_scaled_mm(codes, weight, scales, channels, torch.bfloat16)
    grouped, group_scales = gemmill.per_token_group_fp8_quant(x, 128, column_major_scales=True)
    return per_token + gemmill.cutlass_scaled_mm(grouped, weight, group_scales, weight_scales, torch.bfloat16)


def some_layer(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(256, 384, generator=generator).to(torch.float8_e4m3fn).t()
    return torch.randn(rows, 384, generator=generator).bfloat16(), weight, torch.rand(3, 2, generator=generator)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_compilation_serves_every_number_of_rows(backend: str, fresh_compiler) -> None:
    """The checks add no guard: a dimension that is marked dynamic would be refused if they specialised it."""
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for rows in (5, 3, 17, 128, 200):
        given = some_layer(rows)
        torch._dynamo.mark_dynamic(given[0], 0)
        assert torch.equal(compiled(*given), layer(*given))


def test_guards_are_not_about_the_checks(fresh_compiler) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x, weight, _ = (mode.from_tensor(tensor, static_shapes=False) for tensor in some_layer(5))
    with mode:
        codes = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scales = x.new_empty((x.shape[0], 1), dtype=torch.float32)
        before = len(mode.shape_env.guards)
        torch.ops.gemmill.dynamic_per_token_scaled_fp8_quant.default(codes, x, scales, None)
        out = x.new_empty((x.shape[0], 256))
        torch.ops.gemmill.cutlass_scaled_mm.default(out, codes, weight, scales, scales[:1, :1], None)
    assert len(mode.shape_env.guards) == before


def test_sizes_that_depend_on_data_are_compiled(fresh_compiler) -> None:
    """Such a size has no value while it is traced: checks that depend on it run with the op."""

    def first_rows(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        rows = count.item()
        torch._check(rows >= 2)
        torch._check(rows <= x.shape[0])
        return gemmill.dynamic_per_token_scaled_fp8_quant(x.narrow(0, 0, rows))[1]

    x = some_layer(16)[0]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(first_rows, fullgraph=True, backend="aot_eager")
        for count in (7, 9):
            assert torch.equal(compiled(x, torch.tensor(count)), first_rows(x, torch.tensor(count)))


def test_a_wrong_call_is_refused_when_it_is_compiled(fresh_compiler) -> None:
    x, weight, weight_scales = some_layer(5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"a is \[M, K\] = \[5, 384\] and b is \[K, N\] = \[256, 256\]"):
        compiled(x, weight[:256], weight_scales)


def test_a_compiled_call_follows_grad_mode(fresh_compiler) -> None:
    def scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            codes, scales = gemmill.dynamic_per_token_scaled_fp8_quant(x * weight)
        return codes.float() * scales * weight

    x, weight = some_layer(5)[0], torch.ones(384, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    result = compiled(x, weight)
    assert torch.equal(result, scaled(x, weight))
    result.sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, scaled(x, weight.detach()).sum(0).to(weight.dtype))
    with pytest.raises(RuntimeError, match="input requires grad while grad mode is enabled"):
        torch.compile(gemmill.dynamic_scaled_fp8_quant, fullgraph=True, backend="aot_eager")(x * weight)
