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


_POINTERS = (
    "input out scales azp scale_ub weight residual global_scale mod_scale mod_shift expert_offsets scale_offsets"
).split()
_SIZES_OF_BLOCKS = (
    "is_swizzled scales_stride rounds_up rounds_to_input padded mod_scale_stride mod_shift_stride experts".split()
)


class Arguments(ctypes.Structure):
    """Mirrors `gemmill_quant_args` in kernels/quant/abi.h. Fields have the names that a call's contract gives to what they hold."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in "rows hidden input_stride out_stride residual_stride".split()),
        *(
            (name, ctypes.c_int64)
            for name in "scale_stride_m scale_stride_n group_m group_n scale_rows out_rows".split()
        ),
        *((name, ctypes.c_int64) for name in _SIZES_OF_BLOCKS),
        ("row_sums", ctypes.c_void_p),
        ("eps", ctypes.c_float),
    )


def of_quant(probe) -> list:
    """The variants of quantisation ops."""
    return [entry for entry in probe.build.manifest.entries if entry.family == quant.NAME]


def launched(probe, op: str, arguments: list) -> str | None:
    """The symbol of the kernel that a call launches; None if it launches none."""
    count = ctypes.c_int32.in_dll(probe._library, "probe_launches")
    count.value = 0
    getattr(probe.ops, op).default(*arguments)
    return None if count.value == 0 else _symbol(probe)


def _symbol(probe) -> str:
    return (ctypes.c_char * 512).in_dll(probe._library, "probe_symbol").value.decode()


def recorded(probe) -> Arguments:
    size = ctypes.sizeof(Arguments)
    return Arguments.from_buffer_copy((ctypes.c_ubyte * size).in_dll(probe._library, "probe_args"))


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
            assert launched(probe, op, arguments) is None
        elif config in in_build:
            assert launched(probe, op, arguments) == symbol_of(config)
            _compare_arguments(probe, config.scaling, judged)
        else:
            with pytest.raises(RuntimeError, match=f"lacks {to_name(config)}, the variant for such calls"):
                getattr(probe.ops, op).default(*arguments)
    assert len(refused) > 5


def _compare_arguments(probe, family: Scaling, call: Judged) -> None:
    """Every field of what a kernel was given is what the call says."""
    args = recorded(probe)
    wanted = _wanted(family, call)
    for name, kind in Arguments._fields_:
        if name in wanted:
            assert getattr(args, name) == wanted[name], name
        elif call.get(name) is not None:
            said = call.tensor(name).data if kind is ctypes.c_void_p else kind(call[name]).value
            assert (getattr(args, name) or 0) == said, name
        else:
            assert not getattr(args, name), name


def _wanted(family: Scaling, call: Judged) -> dict[str, int]:
    """What is not in the call by the field's name."""
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
        assert launched(probe, "dynamic_per_token_scaled_fp8_quant", plain) == pinned.symbol
        with pytest.raises(
            RuntimeError, match=f"the pinned variant {pinned.name} cannot take the call: it has activation"
        ):
            launched(probe, "silu_and_mul_per_token_quant", gated)
    finally:
        probe.build.pin(before)
    assert launched(probe, "silu_and_mul_per_token_quant", gated) == other.symbol


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
@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_dense_empty_tensors_are_taken(op: str, shape: tuple, probe) -> None:
    rng = random.Random(op)
    for _ in range(10):
        arguments = empty_call(op, shape, rng)
        config = config_of(check(BY_NAME[op], of_arguments(BY_NAME[op], arguments)), Arch.SM90A)
        if config.scaling is not Scaling.TENSOR:
            assert launched(probe, op, arguments) is None
        elif config in {entry.config for entry in of_quant(probe)}:
            assert launched(probe, op, arguments) == symbol_of(config)


def test_rows_without_elements_come_to_a_launch_where_they_have_scales(probe) -> None:
    x, codes, scales = torch.empty(3, 0).bfloat16(), torch.empty(3, 0).to(torch.float8_e4m3fn), torch.empty(3, 1)
    assert "quant_token" in launched(probe, "dynamic_per_token_scaled_fp8_quant", [codes, x, scales, None])
    assert "quant_rmstoken" in launched(
        probe, "rms_norm_dynamic_per_token_quant", [codes, x, x[0], scales, 1e-6, None, None]
    )
    empty = torch.empty(3, 0)
    assert launched(probe, "silu_and_mul_per_block_quant", [codes, x, empty, 128, None, False]) is None


@pytest.mark.parametrize("stride", [0, 1, 9])
def test_packed_scales_of_one_row_have_the_stride_of_their_layout(stride: int, probe) -> None:
    op = "per_token_group_fp8_quant_packed"
    x, packed = torch.ones(1, 1, 1280).bfloat16(), torch.empty(16, dtype=torch.int32)
    for shape, strides in (((1, 3), (stride, 4)), ((1, 1, 3), (stride, stride, 4))):
        for out in (torch.empty(1, 1, 1280), torch.empty(4, 1280)):
            call = [x, out.to(torch.float8_e4m3fn), packed.as_strided(shape, strides), 128, 1e-10, -448.0, 448.0]
            assert launched(probe, op, call) is not None
            args = recorded(probe)
            assert (args.scale_stride_m, args.scale_stride_n, args.scale_rows) == (1, 4, 4)
            assert args.out_rows == of_arguments(BY_NAME[op], call)["output_q"].rows


@pytest.mark.parametrize("op", ["scaled_mxfp8_dequant", "scaled_mxfp8_quant"])
def test_plain_block_scales_may_lie_in_wider_rows(op: str, probe) -> None:
    values, codes = torch.ones(3, 64).bfloat16(), torch.ones(3, 64).to(torch.float8_e4m3fn)
    scales = torch.ones(3, 5, dtype=torch.uint8)[:, :2]
    call = [values, codes, scales, False] if "de" in op else [codes, scales, values, "up", False]
    assert launched(probe, op, call) is not None
    assert (recorded(probe).scales_stride, recorded(probe).is_swizzled) == (5, 0)


def test_a_text_argument_leaves_no_memory_behind(probe) -> None:
    x, scale = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(1)
    call = [torch.empty(2, 32, dtype=torch.float8_e4m3fn), x, scale, "gelu"]
    in_use, calls = ctypes.CDLL(None).mallinfo2, 20_000
    in_use.restype = _MallocState
    launched(probe, "act_and_mul_quant", call)
    before = in_use().uordblks
    for _ in range(calls):
        launched(probe, "act_and_mul_quant", call)
    assert in_use().uordblks - before < 16 * calls


class _MallocState(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]
