"""The binding's calls of a machine, on one that stands in for a machine with GPUs: devices, streams, memory, the driver."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

CUDA = 1
"""torch's number of that type of device."""
INVALID_VALUE = 1


@pytest.fixture
def machine(probe) -> Iterator[Any]:
    """A machine of several GPUs, of which the calling thread has used none."""
    found = probe.machine
    ctypes.memset(ctypes.addressof(found), 0, ctypes.sizeof(found))
    yield found
    ctypes.memset(ctypes.addressof(found), 0, ctypes.sizeof(found))
    found.device = -1
    for name in ("probe_workspace", "probe_stride"):
        probe.number(name).value = 0


def good_call(bias: bool = False) -> list[torch.Tensor | None]:
    a, b = torch.zeros(16, 64, dtype=torch.int8), torch.zeros(32, 64, dtype=torch.int8).t()
    out = torch.zeros(16, 32, dtype=torch.bfloat16)
    return [out, a, b, torch.ones(1), torch.ones(1), torch.zeros(32, dtype=torch.bfloat16) if bias else None]


def good_quantisation() -> list[torch.Tensor | None]:
    x, codes = torch.ones(2, 64, dtype=torch.bfloat16), torch.zeros(2, 64).to(torch.float8_e4m3fn)
    return [codes, x, torch.zeros(2), None]


CALLS = {"cutlass_scaled_mm": good_call, "dynamic_per_token_scaled_fp8_quant": good_quantisation}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("current", [0, 1, 2])
@pytest.mark.parametrize("device", [0, 1])
def test_call_is_made_on_its_tensors_device(device: int, current: int, op: str, probe, machine) -> None:
    machine.device, machine.current = device, current
    assert probe.run(op, *CALLS[op]()) is not None
    assert probe.how.device == device
    assert probe.how.sm_count == 100 + device
    assert probe.number("probe_current", ctypes.c_int32).value == device, "the device that was current at the launch"
    assert probe.how.stream == 0x1000 + 16 * device
    assert machine.current == current and machine.guards == 0, "what was current is so again"
    assert machine.devices_set == 0, "to set a device back makes a context there, unless torch does it"


def test_device_is_asked_once_for_what_does_not_change(probe, machine) -> None:
    for device in (3, 4, 3, 4):
        machine.device = device
        probe.run("cutlass_scaled_mm", *good_call())
    assert machine.attributes_asked <= 2


@pytest.mark.parametrize(
    ("setting", "default", "told"),
    [("programmatic_launch", 1, (0, 0)), ("constant_weights", 0, (1, 1)), ("endless_waits", 0, (1, 0))],
)
def test_a_setting_reaches_kernels_as_itself_alone(setting: str, default: int, told: tuple, probe, machine) -> None:
    machine.device = 0
    send = getattr(probe.build._library, f"gemmill_set_{setting}")
    try:
        send(1 - default)
        probe.run("cutlass_scaled_mm", *good_call())
        assert (probe.how.programmatic_launch, probe.how.constant_weights) == told
    finally:
        send(default)
    probe.run("cutlass_scaled_mm", *good_call())
    assert (probe.how.programmatic_launch, probe.how.constant_weights) == (1, 0)


@pytest.mark.parametrize("position", [1, 2, 3, 4, 5])
def test_operand_on_another_device(position: int, probe, machine) -> None:
    machine.device = 1
    call = good_call(bias=True)
    assert probe.run("cutlass_scaled_mm", *call) is not None, "remembered, with the devices"
    machine.elsewhere = call[position].data_ptr()
    name = ("out", "a", "b", "a_scales", "b_scales", "bias")[position]
    with pytest.raises(RuntimeError) as caught:
        probe.run("cutlass_scaled_mm", *call)
    assert str(caught.value).splitlines()[0] == (
        f"cutlass_scaled_mm: {name} is on cuda:2 and out is on cuda:1: all tensors must be on one device"
    )


@pytest.mark.parametrize("bias", [False, True])
def test_no_tensor_is_kept(bias: bool, probe, machine) -> None:
    """Boxed kernels own their arguments, also where they refuse them."""
    call = good_call(bias)
    probe.run("cutlass_scaled_mm", *call)
    assert machine.tensors_let_go == 5 + bias
    call[1] = call[1].to(torch.int16)
    with pytest.raises(RuntimeError):
        probe.run("cutlass_scaled_mm", *call)
    assert machine.tensors_let_go == 2 * (5 + bias)


@pytest.fixture
def needs_workspace(probe, machine) -> list[Any]:
    """An op with a call on device 1, whose kernels ask for 4096 bytes."""
    machine.device = 1
    probe.number("probe_workspace").value = 4096
    x, codes = torch.ones(2, 64, dtype=torch.bfloat16), torch.zeros(2, 64).to(torch.float8_e4m3fn)
    return ["dynamic_scaled_fp8_quant", codes, x, torch.zeros(1)]


def test_workspace_is_torchs(needs_workspace, probe, machine) -> None:
    probe.run(*needs_workspace)
    assert probe.how.workspace
    assert (machine.allocated_bytes, machine.allocated_type, machine.allocated_on) == (4096, CUDA, 1)
    assert machine.tensors_let_go == 4, "three tensors and the workspace"


def test_no_memory_for_a_workspace(needs_workspace, probe, machine) -> None:
    machine.out_of_memory = 1
    with pytest.raises(RuntimeError) as caught:
        probe.run(*needs_workspace)
    assert str(caught.value) == "gemmill: no memory for a workspace of 4096 bytes"
    assert machine.current == 0 and machine.guards == 0


def test_kernel_without_a_workspace_has_none(probe, machine) -> None:
    machine.device = 0
    probe.number("probe_workspace").value = 4096
    probe.run("cutlass_scaled_mm", *good_call())
    assert probe.how.workspace is None and machine.allocated_bytes == 0


def test_workspace_in_an_arena(needs_workspace, probe, machine) -> None:
    library = probe.build._library
    memory = ctypes.create_string_buffer(8192)
    library.gemmill_arena_used.restype = ctypes.c_int64
    try:
        for size in (8192, 4096):
            library.gemmill_set_arena(ctypes.byref(memory), ctypes.c_int64(size))
            probe.run(*needs_workspace)
            assert probe.how.workspace == ctypes.addressof(memory) and machine.allocated_bytes == 0
            assert library.gemmill_arena_used() == 4096
        library.gemmill_set_arena(ctypes.byref(memory), ctypes.c_int64(4095))
        with pytest.raises(RuntimeError, match=r"^gemmill: a workspace of 4096 bytes is not in the arena$"):
            probe.run(*needs_workspace)
    finally:
        library.gemmill_set_arena(None, ctypes.c_int64(0))


QUESTION: dict[str, Any] = {
    "address": 0x7000,
    "dims": (512, 64),
    "stride": 512,
    "box": (64, 32),
    "element_strides": (1, 1),
    "kinds": (0, 0, 3, 2, 0),
}
"""Of a TMA descriptor."""

OTHERS = [
    {"address": 0x8000},
    *({"dims": dims} for dims in ((513, 64), (512, 65))),
    {"stride": 1024},
    *({"box": box} for box in ((32, 32), (64, 16))),
    *({"element_strides": strides} for strides in ((2, 1), (1, 2))),
    *({"kinds": tuple(k + (i == j) for j, k in enumerate((0, 0, 3, 2, 0)))} for i in range(5)),
]


def test_descriptors_are_remembered(probe, machine) -> None:
    first = probe.describe(QUESTION)
    assert first == (0, [0x7000, 512, 512, 64])
    asked = machine.described
    assert probe.describe(QUESTION) == first
    assert machine.described == asked


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_another_descriptor_is_not_one_that_is_remembered(change: dict[str, Any], probe, machine) -> None:
    probe.describe(QUESTION)
    asked = machine.described
    other = QUESTION | change
    assert probe.describe(other) == (0, [other["address"], other["dims"][0], other["stride"], other["box"][0]])
    assert machine.described == asked + 1, "the driver was asked"


def test_descriptor_that_cannot_be_made(probe, machine) -> None:
    """CUTLASS would launch all the same: the call ends before that, and the next one is none the worse."""
    machine.device = 0
    call = good_call()
    for _ in range(2):  # a failure is not remembered as an answer
        probe.number("probe_stride").value = 4
        with pytest.raises(RuntimeError) as caught:
            probe.run("cutlass_scaled_mm", *call)
        message = str(caught.value)
        assert message.startswith("gemmill: gemmill_sm90a_")
        assert message.endswith(
            " could not be launched: TMA takes no tensor of 64 x 16 elements with strides of 4 bytes "
            f"at address 0x{call[1].data_ptr():x} (CUDA error {INVALID_VALUE})"
        )
        assert machine.launched == 0
    probe.number("probe_stride").value = 64
    probe.run("cutlass_scaled_mm", *call)
    assert machine.launched == 1
