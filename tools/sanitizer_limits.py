"""Launches a kernel of sanitizer_limits.cu, and one that reads its output: `sanitizer_limits.py CUBIN KERNEL`.

Set PYTORCH_NO_CUDA_MEMORY_CACHING=1 for initcheck, which else takes torch's cached memory for written.
"""

import ctypes
import sys
from pathlib import Path

import torch

THREADS, WORDS = 96, 64 * 128


def main() -> None:
    """Prints whether the second kernel read the stored values."""
    cubin, name = sys.argv[1:]
    driver, module = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    given = torch.arange(WORDS, dtype=torch.int32, device="cuda")
    stored = torch.empty(THREADS, dtype=torch.int32, device="cuda")
    found = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    _check(driver.cuModuleLoadData(ctypes.byref(module), Path(cubin).read_bytes()))
    for kernel, source, target in ((name, given, stored), ("read_back", stored, found)):
        function = ctypes.c_void_p()
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
        addresses = [ctypes.c_uint64(x.data_ptr()) for x in (source, target)]
        arguments = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in addresses))
        _check(driver.cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, None, arguments, None))
        torch.cuda.synchronize()
    print(f"{name}: {int(found[:64].sum())}")


def _check(status: int) -> None:
    if status:
        raise SystemExit(f"the CUDA driver returned {status}")


if __name__ == "__main__":
    main()
