"""Random calls: that they follow from op, seed and index, that they are legal, and the one fault of broken ones."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from gemmill.fuzz.breakages import _must_fail, break_call, draw_call
from gemmill.numerics.call import CPU_LIMITS, GPU_LIMITS
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME, OPS

CPU = torch.device("cpu")
POOLS = Pools(CPU)
NAMES = [op.name for op in OPS]


def made(op: str, seed: int, index: int):
    """A call, its memory with values, and its arguments."""
    call, breakage = draw_call(op, seed, index, CPU_LIMITS)
    memory = Memory(call.slots, CPU)
    POOLS.fill(memory, call.offsets)
    names = BY_NAME[op].arguments
    arguments = {name: memory.tensor(name) if name in call.slots else call.plain.get(name) for name in names}
    return call, breakage, memory, arguments


@pytest.mark.parametrize("op", NAMES)
def test_a_call_follows_from_op_seed_and_index_alone(op: str) -> None:
    for index in range(20):
        draw_call(op, 3, index + 1, CPU_LIMITS)  # whatever call came before
        (first, _, memory, _), (second, _, again, _) = made(op, 3, index), made(op, 3, index)
        assert first == second
        assert torch.equal(memory.bytes, again.bytes)
    others = {str(draw_call(op, seed, index, CPU_LIMITS)[0]) for seed in range(3) for index in range(20)}
    assert len(others) > 50


def test_values_are_the_same_in_every_process() -> None:
    call, _, memory, _ = made("cutlass_scaled_mm", 0, 20)
    again = Memory(call.slots, CPU)
    Pools(CPU).fill(again, call.offsets)
    assert torch.equal(memory.bytes, again.bytes)


@pytest.mark.parametrize("op", NAMES)
def test_a_legal_call_passes_the_checks(op: str, draws: int) -> None:
    refused = {}
    for index in range(80 * draws):
        call, _, _, arguments = made(op, 7, index)
        try:
            checks.check(BY_NAME[op], operands.of_arguments(BY_NAME[op], list(arguments.values())))
        except RuntimeError as error:
            refused[index] = f"{error}: {call}"
    assert not refused


@pytest.mark.parametrize("op", NAMES)
def test_each_tensor_begins_at_a_multiple_of_its_elements(op: str) -> None:
    """So no kernel reads a number that begins within another; caches are read in pieces of 16 bytes."""
    calls = (made(op, 7, index) for index in range(200))
    arguments = next(given for call, _, _, given in calls if all(x.numel for x in call.slots.values()))
    declared = {tensor.role: tensor for tensor in REGISTRY.ops[op][1].tensors}
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            continue
        call = operands.of_arguments(BY_NAME[op], list(arguments.values()))
        call[name] = replace(call[name], data=call[name].data + 1)
        pieces = max(value.dtype.itemsize, declared[REGISTRY.ops[op][1].roles.get(name, name)].alignment)
        if pieces == 1:
            checks.check(BY_NAME[op], call)
            continue
        with pytest.raises(RuntimeError, match=f"{op}: {name} begins \\d+ bytes past a {pieces}-byte boundary, and"):
            checks.check(BY_NAME[op], call)


@pytest.mark.parametrize("op", NAMES)
def test_calls_have_all_that_the_op_takes(op: str) -> None:
    calls = [draw_call(op, 2, index, CPU_LIMITS)[0] for index in range(400)]
    parameters = {parameter.name: parameter for parameter in BY_NAME[op].parameters}
    for name, parameter in parameters.items():
        given = sum(name in call.slots for call in calls)
        if parameter.kind == "Tensor":
            assert (0 < given < len(calls)) if parameter.optional else given == len(calls), name
    out = [next(slot for slot in call.slots.values() if slot.written) for call in calls]
    assert {0, 1} <= {min(slot.rows, slot.numel) for slot in out}  # a vector has one row, perhaps of no elements
    assert any(slot.shift for slot in out)
    if any(slot.rows > 1 for slot in out):
        assert any(slot.rows % 2 and slot.rows > 1 for slot in out)
        assert any(slot.row_stride > slot.columns > 1 for slot in out)
    operand = [slot for call in calls for slot in call.slots.values() if not slot.written]
    family, declared = REGISTRY.ops[op]
    fixed = {*family.tuning.aligned, *(x.role for x in declared.tensors if x.alignment > 1)}
    for name in (name for name in parameters if declared.roles.get(name, name) not in fixed):
        given = [call.slots[name] for call in calls if name in call.slots]
        assert not given or any(slot.shift * slot.dtype.itemsize % 16 for slot in given), f"{name} is never shifted"
    meaningless = [(n, s) for slot in operand for n, s in zip(slot.shape, slot.strides, strict=True) if n == 1]
    assert any(stride > 1 << 32 for _, stride in meaningless), "strides of dimensions of size 1"


def test_ranks_and_empty_batches() -> None:
    shapes = [draw_call("static_scaled_fp8_quant", 0, i, CPU_LIMITS)[0].slots["input"].shape for i in range(600)]
    assert {len(shape) for shape in shapes} == {1, 2, 3, 4}
    assert any(len(shape) == 3 and 0 in shape for shape in shapes)


def test_gemm_calls_have_every_kind_of_scales() -> None:
    calls = [draw_call("cutlass_scaled_mm", 0, index, GPU_LIMITS)[0] for index in range(2000)]
    shapes = Counter(tuple(len(call.slots[name].shape) for name in ("a_scales", "b_scales")) for call in calls)
    assert {(0, 2), (1, 1), (2, 2)} <= set(shapes)
    one_group = [
        c for c in calls if c.slots["a"].columns <= 128 < c.slots["b"].columns and c.slots["a"].dtype.itemsize == 1
    ]
    assert any(c.slots["b"].columns > 8192 for c in one_group), "few groups of K and many columns"
    largest = max(slot.numel for call in calls for slot in call.slots.values())
    assert GPU_LIMITS.elements < largest <= GPU_LIMITS.large


@pytest.mark.parametrize("op", NAMES)
def test_a_broken_call_has_a_sentence(op: str, draws: int) -> None:
    broken, count = [], 60 * draws
    for index in range(count):
        _, _, memory, arguments = made(op, 2, index)
        if (found := break_call(op, arguments, memory, Draw(op, 2, -index - 1))) is not None:
            broken.append(found)
            changed = [name for name in arguments if found.arguments[name] is not arguments[name]]
            assert len(changed) == 1 and found.what.startswith(f"{changed[0]} ")
    assert len(broken) > 0.93 * count
    assert all(each.sentence.startswith(f"{op}: ") for each in broken if each.sentence)
    assert len({each.what for each in broken}) >= 20


def test_no_breakage_is_a_legal_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a change is none that the checks mind, another is tried; if none is found, the call is no broken one."""
    _, _, memory, arguments = made("dynamic_scaled_fp8_quant", 0, 0)
    monkeypatch.setattr("gemmill.fuzz.breakages._OF_TENSORS", {"is itself": lambda value, *_: value})
    assert break_call("dynamic_scaled_fp8_quant", arguments, memory, Draw("x", 0, 0)) is None


@pytest.mark.parametrize(
    ("op", "argument", "is_refused"),
    [
        ("per_token_group_fp8_quant", "output_s", False),
        ("dynamic_per_token_scaled_fp8_quant", "scale", True),
        ("cutlass_scaled_mm", "bias", True),
    ],
)
def test_gaps_are_a_fault_where_the_contract_asks_for_a_layout(op: str, argument: str, is_refused: bool) -> None:
    """Scales in groups may lie [rows, 2] with gaps between rows: no check has anything against them."""
    assert _must_fail("has two dimensions with gaps", REGISTRY.ops[op][1], argument) is is_refused


def test_strides_of_leading_dimensions_of_an_empty_tensor_are_torchs() -> None:
    for index in range(300):
        call, _ = draw_call("dynamic_scaled_fp8_quant", 4, index, CPU_LIMITS)
        out = call.slots["result"]
        if 0 in out.shape and out.row_stride == out.columns > 1 and 1 not in out.shape:
            assert out.strides == torch.empty(out.shape).stride()
