"""The extension's checks and choice for quantisation ops against Python's, on CPU tensors."""

import ctypes
import random

import pytest
import torch

import gemmill
from families.quant.random_calls import Breakage, empty_call, some_call
from gemmill.families import quant
from gemmill.families.quant.call import config_of
from gemmill.families.quant.config import Activation, Scaling
from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.families.quant.layouts import group_strides, static_scales
from gemmill.family import Judged
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import symbol_of, to_name
from gemmill.vocab import Arch

pytestmark = pytest.mark.compile
ROUNDS = 400

CALLED = {"in": "input", "in_stride": "input_stride"}
"""The names in a call's contract of fields that have another in abi.h."""


def of_quant(probe) -> list:
    """The variants of quantisation ops."""
    return [entry for entry in probe.build.manifest.entries if entry.family == quant.NAME]


@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_both_refuse_the_same_calls_with_the_same_sentence(op: str, probe) -> None:
    rng = random.Random(op)
    refused = set()
    in_build = {entry.config for entry in of_quant(probe)}
    for round_ in range(ROUNDS):
        arguments = some_call(op, rng, Breakage.SOME if round_ % 3 else Breakage.NONE)
        call = of_arguments(BY_NAME[op], arguments)
        try:
            judged = check(BY_NAME[op], call)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as caught:
                getattr(probe.ops, op).default(*arguments)
            assert str(error) in str(caught.value), (arguments, call)
            refused.add(str(error))
            continue
        config = config_of(judged, Arch.SM90A)
        if not judged["works"]:
            assert probe.run(op, *arguments) is None
        elif config in in_build:
            symbol, args = probe.run(op, *arguments)
            assert symbol == symbol_of(config)
            _compare_arguments(args, config.scaling, judged)
        else:
            with pytest.raises(RuntimeError, match=f"lacks {to_name(config)}, the variant for such calls"):
                getattr(probe.ops, op).default(*arguments)
    assert len(refused) > 5


def _compare_arguments(args: ctypes.Structure, family: Scaling, call: Judged) -> None:
    """Every field of a kernel's arguments is the call's."""
    wanted = _wanted(family, call)
    for field, kind in args._fields_:
        found, name = getattr(args, field) or 0, CALLED.get(field, field)
        if name in wanted:
            assert found == wanted[name], name
        elif call.get(name) is not None:
            assert found == (call.tensor(name).data if kind is ctypes.c_void_p else kind(call[name]).value), name
        else:
            assert not found, name


def _wanted(family: Scaling, call: Judged) -> dict[str, int]:
    """Fields that the call does not have by their names."""
    strides, group = (0, 0), (0, 0)
    if family.is_given:
        layout = static_scales(call)
        assert layout is not None
        strides, group = layout.strides, layout.group
    elif family.is_grouped:
        found = group_strides(call)
        assert found is not None
        strides, group = found, (1, call["group_size"])
    return dict(zip(("scale_stride_m", "scale_stride_n", "group_m", "group_n"), strides + group, strict=True))


def test_a_pinned_kernel_takes_no_other_call(probe) -> None:
    pinned, other = (
        next(e for e in of_quant(probe) if (e.config.scaling, e.config.activation) == (Scaling.TOKEN, activation))
        for activation in (Activation.NONE, Activation.SILU)
    )
    before = probe.build.pin(probe.build.table.rows_of(pinned.name)[0])
    try:
        x, scale = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(2)
        plain = [torch.empty(2, 64, dtype=torch.float8_e4m3fn), x, scale, None]
        gated = [torch.empty(2, 32, dtype=torch.float8_e4m3fn), x, scale, None]
        assert probe.run("dynamic_per_token_scaled_fp8_quant", *plain)[0] == pinned.symbol
        with pytest.raises(
            RuntimeError, match=f"the pinned variant {pinned.name} cannot take the call: it has activation"
        ):
            probe.run("silu_and_mul_per_token_quant", *gated)
    finally:
        probe.build.pin(before)
    assert probe.run("silu_and_mul_per_token_quant", *gated)[0] == other.symbol


def test_explain_names_the_variant_and_what_the_others_lack(probe) -> None:
    assert gemmill is not None
    arguments = some_call("silu_and_mul_quant", random.Random(0), Breakage.NONE)
    arguments[1] = arguments[1].to(torch.bfloat16)
    op = BY_NAME["silu_and_mul_quant"]
    choice = probe.build.explain(op, of_arguments(op, arguments), 132)
    assert choice.entry.name == "sm90a_quant_static_bf16_e4m3_silu_f32_sym"
    assert len(choice.trace) == len(of_quant(probe)) - 1
    assert "it has scaling=token, the call needs static" in {rejected.reason for rejected in choice.trace}


@pytest.mark.parametrize("shape", [(2, 0), (3, 0, 2), (0, 3)])
@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS if "input" in op.arguments])
def test_dense_empty_tensors_are_taken(op: str, shape: tuple, probe) -> None:
    rng = random.Random(op)
    for _ in range(10):
        arguments = empty_call(op, shape, rng)
        config = config_of(check(BY_NAME[op], of_arguments(BY_NAME[op], arguments)), Arch.SM90A)
        if config.scaling is not Scaling.TENSOR:
            assert probe.run(op, *arguments) is None
        elif config in {entry.config for entry in of_quant(probe)}:
            assert probe.run(op, *arguments)[0] == symbol_of(config)


def test_rows_without_elements_come_to_a_launch_where_they_have_scales(probe) -> None:
    x, codes, scales = torch.empty(3, 0).bfloat16(), torch.empty(3, 0).to(torch.float8_e4m3fn), torch.empty(3, 1)
    assert "quant_token" in probe.run("dynamic_per_token_scaled_fp8_quant", codes, x, scales, None)[0]
    rms = probe.run("rms_norm_dynamic_per_token_quant", codes, x, x[0], scales, 1e-6, None, None)
    assert "quant_rmstoken" in rms[0]
    empty = torch.empty(3, 0)
    assert probe.run("silu_and_mul_per_block_quant", codes, x, empty, 128, None, False) is None


@pytest.mark.parametrize("stride", [0, 1, 9])
def test_packed_scales_of_one_row_have_the_stride_of_their_layout(stride: int, probe) -> None:
    op = "per_token_group_fp8_quant_packed"
    x, packed = torch.ones(1, 1, 1280).bfloat16(), torch.empty(16, dtype=torch.int32)
    for shape, strides in (((1, 3), (stride, 4)), ((1, 1, 3), (stride, stride, 4))):
        for out in (torch.empty(1, 1, 1280), torch.empty(4, 1280)):
            call = [x, out.to(torch.float8_e4m3fn), packed.as_strided(shape, strides), 128, 1e-10, -448.0, 448.0]
            _, args = probe.run(op, *call)
            assert (args.scale_stride_m, args.scale_stride_n, args.scale_rows) == (1, 4, 4)
            assert args.out_rows == of_arguments(BY_NAME[op], call)["output_q"].rows


@pytest.mark.parametrize("op", ["scaled_mxfp8_dequant", "scaled_mxfp8_quant"])
def test_plain_block_scales_may_lie_in_wider_rows(op: str, probe) -> None:
    values, codes = torch.ones(3, 64).bfloat16(), torch.ones(3, 64).to(torch.float8_e4m3fn)
    scales = torch.ones(3, 5, dtype=torch.uint8)[:, :2]
    call = [values, codes, scales, False] if "de" in op else [codes, scales, values, "up", False]
    _, args = probe.run(op, *call)
    assert (args.scales_stride, args.is_swizzled) == (5, 0)


def test_a_text_argument_leaves_no_memory_behind(probe) -> None:
    x, scale = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(1)
    call = [torch.empty(2, 32, dtype=torch.float8_e4m3fn), x, scale, "gelu"]
    in_use, calls = ctypes.CDLL(None).mallinfo2, 20_000
    in_use.restype = _MallocState
    probe.run("act_and_mul_quant", *call)
    before = in_use().uordblks
    for _ in range(calls):
        probe.run("act_and_mul_quant", *call)
    assert in_use().uordblks - before < 16 * calls


class _MallocState(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]
