"""On a GPU a wait in vain (kernels/core/patience.cuh) ends its kernel with an error, unless waits may be endless: here after a second."""

import subprocess
import sys

import pytest

from gemmill.locations import kernels_dir

pytestmark = pytest.mark.needs_cuda
TYPES = "typedef unsigned int uint32_t;\ntypedef unsigned long long uint64_t;\n"
KERNEL = """
extern "C" __global__ void wait_in_vain(int const volatile* counter, int endless) {
  gemmill::Patience<> patience;
  uint64_t const end = gemmill::DeviceClock::now() + 4'000'000'000;
  while (*counter == 0 && gemmill::DeviceClock::now() < end) patience.spend(endless != 0);
}
"""
PROGRAM = """
import sys, torch
kernel = torch.cuda._compile_kernel(sys.argv[1], "wait_in_vain")
kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, dtype=torch.int32, device="cuda"), int(sys.argv[2])])
torch.cuda.synchronize()
print("ended")
"""


def source() -> str:
    """The kernel, for NVRTC, which has no headers of the standard library."""
    header, limit = (kernels_dir() / "core" / "patience.cuh").read_text(), "kMostNs = 20'000'000'000;"
    assert header.count(limit) == 1
    lines = header.replace(limit, "kMostNs = 1'000'000'000;").splitlines()
    return TYPES + "\n".join(line for line in lines if not line.startswith(("#include", "#pragma"))) + KERNEL


@pytest.mark.parametrize(("endless", "said"), [("0", ""), ("1", "ended\n")])
def test_a_wait_in_vain_ends_with_an_error_unless_it_may_be_endless(endless: str, said: str) -> None:
    """In a process of its own, whose context the error ends."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, source(), endless], capture_output=True, text=True)
    assert (done.stdout, done.returncode == 0) == (said, bool(said)), done.stderr
    assert said or "CUDA error" in done.stderr
