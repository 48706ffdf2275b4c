"""How kernels are launched (kernels/core/launch.cuh), with a CUDA that only records calls, so without a GPU."""

import subprocess
from pathlib import Path

import pytest

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch

_PROGRAM = """
#include <cstdio>
#include "core/launch.cuh"

static int current_device = 0;
static CUresult answer = CUDA_SUCCESS;

static int number(void const* x) { return static_cast<int>(reinterpret_cast<intptr_t>(x)); }

extern "C" {
cudaError_t cudaSetDevice(int device) {
  std::printf("make %d current\\n", device);
  current_device = device, answer = CUDA_SUCCESS;
  return cudaSuccess;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, void const*) {
  std::printf("find on %d\\n", current_device);
  *function = reinterpret_cast<cudaFunction_t>(intptr_t{100} + current_device);
  return current_device < 8 ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int bytes) {
  std::printf("allow %d on %d\\n", bytes, current_device);
  return current_device < 8 ? cudaSuccess : cudaErrorInvalidValue;
}
CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** parameters, void**) {
  CUlaunchConfig const& x = *config;
  std::printf("launch %d with %d on stream %d, grid %u %u %u, block %u %u %u, %u bytes", number(function),
              *static_cast<int*>(parameters[0]), number(x.hStream), x.gridDimX, x.gridDimY, x.gridDimZ, x.blockDimX, x.blockDimY,
              x.blockDimZ, x.sharedMemBytes);
  for (unsigned i = 0; i < x.numAttrs; ++i) {
    CUlaunchAttributeValue const& value = x.attrs[i].value;
    if (x.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) std::printf(", cluster %u %u %u", value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
    if (x.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) std::printf(", programmatic %d", value.programmaticStreamSerializationAllowed);
  }
  std::printf("\\n");
  return answer;
}
}

static void kernel() {}

static void launch(int device, dim3 cluster = {1, 1, 1}, bool programmatic = false) {
  int parameter = 7;
  void* parameters[] = {&parameter};
  gemmill_launch const how{reinterpret_cast<void*>(0x50), nullptr, device, 132, programmatic, 0};
  std::printf("status %d\\n", gemmill::launch_kernel<&kernel>({{2, 3, 4}, {5, 6, 7}, cluster, 8}, how, parameters));
}

static void allow(int device) { std::printf("status %d\\n", static_cast<int>(gemmill::allow_shared_memory<&kernel>(device, 8))); }

int main() {
  CALLS
}
"""
_PLAIN = "launch {0} with 7 on stream 80, grid 2 3 4, block 5 6 7, 8 bytes"
_NO_SUCH_DEVICE, _NO_FUNCTION, _INVALID_VALUE = 101, 98, 1


def _told(calls: str, toolchain: ToolchainPaths, folder: Path) -> list[str]:
    """The calls of CUDA by a program of these launches, and the status of each."""
    (folder / "main.cpp").write_text(_PROGRAM.replace("CALLS", calls))
    flags = expand(flags_for(Arch.SM90A).host, roots_of(toolchain, kernels_dir()))
    command = [toolchain.gxx, *flags, folder / "main.cpp", "-o", folder / "main"]
    subprocess.run(list(map(str, command)), check=True)
    return subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ("launch(0);", ["find on 0", _PLAIN.format(100), "status 0"]),
        ("launch(0, {1, 1, 1}, true);", ["find on 0", _PLAIN.format(100) + ", programmatic 1", "status 0"]),
        ("launch(0, {1, 2, 1});", ["find on 0", _PLAIN.format(100) + ", cluster 1 2 1", "status 0"]),
        (
            "launch(0, {3, 1, 2}, true);",
            ["find on 0", _PLAIN.format(100) + ", cluster 3 1 2, programmatic 1", "status 0"],
        ),
        ("answer = CUDA_ERROR_INVALID_VALUE; launch(0);", ["find on 0", _PLAIN.format(100), "status 1"]),
    ],
)
def test_a_kernel_is_launched_as_it_was_asked_for(calls: str, told: list[str], toolchain, tmp_path) -> None:
    assert _told(calls, toolchain, tmp_path) == told


def test_what_is_constant_for_a_device_is_asked_once_on_each(toolchain, tmp_path) -> None:
    calls = "launch(0); launch(0); current_device = 3; launch(3); launch(3); allow(3); allow(3); current_device = 2; allow(2);"
    of_0, of_3 = [_PLAIN.format(100), "status 0"], [_PLAIN.format(103), "status 0"]
    assert _told(calls, toolchain, tmp_path) == [
        *("find on 0", *of_0, *of_0),
        *("find on 3", *of_3, *of_3),
        *("allow 8 on 3", "status 0", "status 0"),
        *("allow 8 on 2", "status 0"),
    ]


def test_what_fails_is_asked_again(toolchain, tmp_path) -> None:
    calls = (
        "current_device = 9; launch(9); launch(9); allow(9); allow(9); launch(64); launch(-1); allow(64); allow(-1);"
    )
    assert _told(calls, toolchain, tmp_path) == [
        *("find on 9", f"status {_NO_FUNCTION}") * 2,
        *("allow 8 on 9", f"status {_INVALID_VALUE}") * 2,
        *(f"status {_NO_SUCH_DEVICE}",) * 4,
    ]


def test_a_threads_first_call_makes_its_context_current(toolchain, tmp_path) -> None:
    calls = "current_device = 5; answer = CUDA_ERROR_INVALID_CONTEXT; launch(5);"
    found = _told(calls, toolchain, tmp_path)
    assert found == ["find on 5", _PLAIN.format(105), "make 5 current", _PLAIN.format(105), "status 0"]
