"""Architectures, code generators and compilers."""

from enum import StrEnum


class Arch(StrEnum):
    """A GPU architecture, as nvcc's `-arch` spells it. An `a` target runs on one compute capability, an `f` target on its family."""

    SM90A = "sm90a"
    SM100A = "sm100a"
    SM120F = "sm120f"

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities (major, minor) of the devices that run it, that of its name first."""
        number = int(self.value[2:-1])
        own = (number // 10, number % 10)
        return (own, *(other for other in _FAMILY.get(own, ()) if self.value.endswith("f")))

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
    def emulated_on(self) -> "Arch | None":
        """The architecture whose GPUs run its kernels with emulated instructions; None for an architecture without
        emulation.
        """
        return Arch.SM90A if self is Arch.SM120F else None

    @property
    def shared_memory_bytes(self) -> int:
        """Most shared memory that one CTA can have (CUDA C++ programming guide, technical specifications)."""
        return 101_376 if self is Arch.SM120F else 232_448

    def shared_by(self, ctas: int) -> int:
        """Most shared memory of each of some CTAs that share a multiprocessor. The system keeps 1,024 bytes of each."""
        return (self.shared_memory_bytes + 1024) // ctas - 1024

    @property
    def has_run(self) -> bool:
        """Whether a GPU has run builds for it; others are only compiled and inspected."""
        return self is Arch.SM90A

    @property
    def sm_count(self) -> int:
        """Multiprocessors of the device that plans assume where none is present: H200, B200, RTX 5090."""
        return {Arch.SM90A: 132, Arch.SM100A: 148, Arch.SM120F: 170}[self]


_FAMILY = {(12, 0): ((12, 1),)}
"""Further capabilities that run the family target of a capability (PTX ISA 9.1, `.target`)."""
_BUILT_FOR = {
    Arch.SM90A: "H100, H200 and GH200",
    Arch.SM100A: "B200",
    Arch.SM120F: "RTX 5090, RTX PRO 6000 and DGX Spark",
}
"""Products that run each architecture's kernels."""
_OTHERS = {
    (7, 0): "V100",
    (7, 5): "T4",
    (8, 0): "A100",
    (8, 6): "A10 and RTX 3090",
    (8, 9): "L4, L40S and RTX 4090",
    (10, 3): "B300",
    (11, 0): "Thor",
}
"""Products by compute capability that gemmill has no kernels for (NVIDIA's list of CUDA GPUs)."""


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture whose kernels a GPU of a compute capability runs; where there is none nvcc's name of it: `sm80a`."""
    major, minor = capability
    return next((arch for arch in Arch if capability in arch.capabilities), f"sm{major}{minor}a")


def named_gpu(gpu_arch: str) -> str:
    """A GPU that no kernel runs on, with the products it is in: `sm80a (A100)`. `gpu_arch` is as Arch spells one."""
    major_minor = gpu_arch.removeprefix("sm").rstrip("a")
    capability = (int(major_minor[:-1]), int(major_minor[-1]))
    return f"{gpu_arch} ({_OTHERS[capability]})" if capability in _OTHERS else gpu_arch


def without_kernels(gpu_arch: str) -> str:
    """A clause for a GPU without gemmill's kernels: its architecture, and the architectures that have kernels.
    `gpu_arch` is as Arch spells one.
    """
    built = "; ".join(f"{arch} ({products})" for arch, products in _BUILT_FOR.items())
    return (
        f"gemmill has no kernels for this GPU, {named_gpu(gpu_arch)}: it builds for {built}; an engine's plugin leaves all layers to the engine, "
        "and CPU tensors run the reference"
    )


def cannot_emulate(arch: Arch) -> str:
    """The sentence for `--emulate` with an architecture that has no emulation."""
    emulated = ", ".join(f"{other} on {other.emulated_on}" for other in Arch if other.emulated_on)
    return (
        f"{arch} cannot be emulated: only {emulated} can be; leave --emulate out, or name --arch {emulated.split()[0]}"
    )


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
