"""What makes machine code of an emitted source."""

from enum import StrEnum


class Compiler(StrEnum):
    """Which compiler reads a kernel's emitted source."""

    NVCC = "nvcc"
    """CUDA C++: several kernels in a translation unit"""
    CUTEDSL = "cutedsl"
    """Python for the CuTe DSL: one process compiles several files, each into an object of its own"""
