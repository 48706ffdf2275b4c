"""Dimensions of one element, whose strides mean nothing, and dimensions as long as the docs allow."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import gemmill
from families.scaled_mm.gpu.specs import REFUSES, acceptance, of_variant
from families.scaled_mm.gpu.test_ops import op_of
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.cases.calls import CallSpec, compare, make_call
from gemmill.vocab import SCALE_GROUPS, Accumulation, DType

SINGLES = ((1, 264, 128), (5, 1, 128), (1, 1, 16), (64, 4096, 128), (512, 264, 64), (67, 264, 48), (1, 264, 512))
"""Shapes with dimensions of one element and a K of one group and less."""
STRIDES = (0, 1, 3, 77, 2**40)


def restrided(call, turn):
    """The call with other strides where nothing is stepped along."""

    def of(tensor):
        if tensor is None:
            return None
        odd = [STRIDES[(turn + i) % len(STRIDES)] for i in range(tensor.dim())]
        strides = [o if n == 1 else s for o, n, s in zip(odd, tensor.shape, tensor.stride(), strict=True)]
        return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())

    names = ("out", "a", "b", "a_scales", "b_scales", "bias", "azp_adj", "azp")
    return replace(call, **{name: of(getattr(call, name)) for name in names})


@pytest.mark.parametrize("sizes", SINGLES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_strides_of_dimensions_of_one_element(subject, entry, sizes, device):
    """Whatever they are, each variant that takes the call gives the same."""
    m, n, k = sizes
    spec = of_variant(accepted(entry.config), CallSpec(m=m, n=n, k=k, bias=True, data="integers"))
    for turn in range(len(STRIDES)):
        plain = make_call(spec, device)
        if acceptance(accepted(entry.config), plain) == REFUSES:
            continue
        call = restrided(plain, turn)
        try:
            subject.run(call, entry.name)
        except RuntimeError as error:
            assert "cannot take the call" in str(error) or "does not take" in str(error)
            continue
        result = compare(call, entry.config.design.accumulation)
        assert result.ok, result.report
        assert call.guards_hold()


@pytest.mark.parametrize("groups", SCALE_GROUPS, ids=lambda groups: f"{groups.b_scale}{groups.size}")
@pytest.mark.parametrize("a_dtype", [DType.E4M3, DType.S8])
@pytest.mark.parametrize("sizes", SINGLES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_choices_for_one_group(groups, a_dtype, sizes, device):
    """Without a pin, scales M-major and K-major, of whatever strides along a single group."""
    if device.type != "cpu" and not gemmill.supports("cutlass_scaled_mm", dtype=a_dtype, group_size=groups.size):
        pytest.skip(f"the build has no {a_dtype} kernels with groups of {groups.size}")
    m, n, k = sizes
    for turn, a_scale in ((0, "one"), (1, "one"), (2, "each"), (4, "each")):
        spec = CallSpec(m=m, n=n, k=k, a_dtype=a_dtype, groups=groups, a_scale=a_scale, data="integers")
        call = restrided(make_call(spec, device), turn)
        op_of(call)(*call.arguments)
        result = compare(call, Accumulation.PROMOTED)
        assert result.ok, result.report


def test_one_group_whose_scales_lie_apart(device):
    """As scales in groups at any larger K."""
    for n in (100, 264):
        spec = CallSpec(m=67, n=n, k=112, a_scale="each", data="integers")
        call = make_call(spec, device)
        call = replace(call, a_scales=call.a_scales.repeat(1, 3)[:, :1])
        op_of(call)(*call.arguments)
        result = compare(call, Accumulation.PROMOTED)
        assert result.ok, result.report


MOST = 2**31 - 1
LARGE = {
    "M, the fallback": (MOST, 1, 1),
    "N, the fallback": (1, MOST, 1),
    "K, the fallback": (1, 1, MOST),
    "M, within a tile of the fallback": (2**31 - 63, 1, 1),
    "N, the last that TMA takes": (8, 2**31 - 2**16, 16),
    "N, the first that it does not": (8, 2**31 - 2**16 + 16, 16),
    "K, the last that TMA takes": (1, 8, 2**31 - 2**16),
}


@pytest.mark.needs_cuda
@pytest.mark.parametrize("sizes", LARGE.values(), ids=LARGE)
def test_sizes_up_to_the_largest(sizes, device, request):
    """Every element is right: operands are zero but for their last element along K."""
    if request.config.getoption("--level") != "L2":
        pytest.skip("a minute each: only at --level L2")
    m, n, k = sizes
    rows = -(-k // 16) * 16 if k > 1 else k
    free, _ = torch.cuda.mem_get_info(device)
    if (m + n) * rows + 2 * m * n > free * 0.9:
        pytest.skip(f"M, N, K = {m}, {n}, {k} needs more memory than is free")
    a = torch.zeros(m, rows, dtype=torch.int8, device=device)[:, :k]
    b = torch.zeros(n, rows, dtype=torch.int8, device=device)[:, :k].t()
    a[:, -1], b[-1] = 1, 1
    out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device=device)
    one = torch.ones(1, device=device)
    torch.ops.gemmill.cutlass_scaled_mm(out, a, b, one, one, None)
    assert bool((out == 1).all())


@pytest.mark.needs_cuda
def test_a_call_on_another_device_makes_no_context_on_the_first():
    """In a process that uses cuda:1 alone; needs two GPUs."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    code = """
import ctypes, torch, gemmill
driver = ctypes.CDLL("libcuda.so.1")
device = torch.device("cuda", 1)
a = torch.ones(16, 64, dtype=torch.int8, device=device)
b = torch.ones(32, 64, dtype=torch.int8, device=device).t()
out = torch.empty(16, 32, dtype=torch.bfloat16, device=device)
one = torch.ones(1, device=device)
torch.ops.gemmill.cutlass_scaled_mm(out, a, b, one, one, None)
torch.cuda.synchronize(device)
flags, active = ctypes.c_uint(), ctypes.c_int()
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
print(bool((out == 64).all()), active.value, torch.cuda.current_device())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "0", "0"]
