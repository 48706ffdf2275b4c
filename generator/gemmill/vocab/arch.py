"""Architectures, code generators and compilers."""

from enum import StrEnum


class Arch(StrEnum):
    """A GPU architecture, as nvcc's `-arch` spells it. The `a` targets run on that architecture alone."""

    SM90A = "sm90a"
    SM100A = "sm100a"
    SM120A = "sm120a"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability (major, minor) of the devices that run it."""
        number = int(self.value[2:-1])
        return number // 10, number % 10

    @property
    def sm(self) -> str:
        """The architecture as cuobjdump and the CuTe DSL spell it: `sm_90a`."""
        return f"sm_{self.value[2:]}"

    @property
    def gencode(self) -> str:
        """nvcc's `-gencode` argument. SASS only: a driver refuses PTX of a later toolkit."""
        number = self.value[2:]
        return f"arch=compute_{number},code=sm_{number}"

    @property
    def cutlass_tag(self) -> str:
        """C++ architecture tag in CUTLASS."""
        return f"cutlass::arch::Sm{self.value[2:-1]}"

    @property
    def shared_memory_bytes(self) -> int:
        """Most shared memory that one CTA can have (CUDA C++ programming guide, technical specifications)."""
        return 101_376 if self is Arch.SM120A else 232_448

    @property
    def has_run(self) -> bool:
        """Whether builds for it have been run on a GPU; others are compiled and inspected only."""
        return self is Arch.SM90A

    @property
    def sm_count(self) -> int:
        """Multiprocessors of the device that plans assume where none is present: H200, B200, RTX 5090."""
        return {Arch.SM90A: 132, Arch.SM100A: 148, Arch.SM120A: 170}[self]


class Backend(StrEnum):
    """Which code generator makes the kernel."""

    CUTLASS = "cutlass"
    CUTEDSL = "cutedsl"


class Compiler(StrEnum):
    """Which compiler reads a kernel's emitted source."""

    NVCC = "nvcc"
    """CUDA C++: several kernels in a translation unit"""
    CUTEDSL = "cutedsl"
    """Python for the CuTe DSL: one process compiles several files, each into an object of its own"""
