"""Host code of the kernels of one scale for the tensor before their launch, in a process that finds no GPU: the
arithmetic of slices and shapes must end in a status for every size, empty ones too."""

import os
import subprocess

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.locations import kernels_dir
from gemmill.space.names import parse_name
from gemmill.vocab import Arch

VARIANTS = (
    "sm90a_quant_tensor_bf16_e4m3_none_f32_sym",
    "sm90a_quant_tensor_bf16_e4m3_none_f32_vllmsym",
    "sm90a_quant_tensor_f32_s8_none_f32_asym",
)
SIZES = ((0, 0), (0, 64), (1, 0), (5, 0), (1 << 33, 0), (1, 1), (5, 64), (1 << 20, 8), (3, 1 << 20))
"""Rows and columns."""
NO_DEVICE = (35, 100)
"""Of CUDA: no driver, or one that is too old; and no device."""
_MAIN = """
#include <cstdio>
extern "C" CUresult cuLaunchKernelEx(CUlaunchConfig const*, CUfunction, void**, void**) { return CUDA_ERROR_NO_DEVICE; }
int main() {
  gemmill_launch how{};
  how.sm_count = 132;
  for (auto launch : {%s}) {
    for (auto const& [rows, hidden] : {%s}) {
      int32_t zero_point;
      gemmill_quant_args x{};
      x.azp = &zero_point, x.rows = rows, x.hidden = x.in_stride = x.out_stride = hidden;
      std::printf("%%d ", launch(&x, &how));
    }
  }
}
"""


def test_every_size_ends_in_a_status(toolchain: ToolchainPaths, tmp_path) -> None:
    """The scale of an empty tensor is written: there a launch was tried too."""
    launches = ", ".join(f"gemmill_{name}" for name in VARIANTS)
    sizes = ", ".join(f"std::pair<int64_t, int64_t>{{{rows}, {hidden}}}" for rows, hidden in SIZES)
    text = "\n".join(emit(parse_name(name)).text for name in VARIANTS) + _MAIN % (launches, sizes)
    (tmp_path / "main.cu").write_text(text)
    flags = expand(flags_for(Arch.SM90A).cuda, roots_of(toolchain, kernels_dir()))
    command = [
        toolchain.nvcc,
        *flags,
        tmp_path / "main.cu",
        f"-L{toolchain.cudart_static.parent}",
        "-o",
        tmp_path / "main",
    ]
    compiled = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    no_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([tmp_path / "main"], env=no_gpu, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the program ended with {done.returncode}"
    statuses = list(map(int, done.stdout.split()))
    assert len(statuses) == len(VARIANTS) * len(SIZES)
    assert set(statuses) <= set(NO_DEVICE), statuses
