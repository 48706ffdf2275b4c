"""The release of CUDA that NVIDIA's driver runs."""

import ctypes


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA release that the driver runs; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10
