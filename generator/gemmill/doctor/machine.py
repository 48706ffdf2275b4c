"""Python, torch, driver, GPUs and toolchain of this machine."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from gemmill import __version__
from gemmill.doctor.compilers import BuildError, BuildOptions, find_dsl, find_toolchain, free_memory
from gemmill.doctor.finding import Finding, note, ok, problem
from gemmill.runtime.driver import driver_cuda
from gemmill.vocab import Arch, arch_of, without_kernels

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
_DRIVER_VERSION = Path("/sys/module/nvidia/version")


def examine_python() -> Iterator[Finding]:
    """The versions of gemmill and of Python."""
    yield ok("gemmill", __version__)
    found = f"{platform.python_version()} on {platform.platform()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield problem("python", found, "use Python 3.11 or later")
    else:
        yield ok("python", found)


def examine_torch() -> Iterator[Finding]:
    """torch, its CUDA release, and the GPUs that it sees."""
    try:
        import torch
    except ImportError as error:
        yield problem("torch", f"not importable ({error})", "pip install torch")
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if version < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        yield problem("torch", f"{torch.__version__}, {built_for}", f"upgrade to torch {wanted} or later")
    else:
        yield ok("torch", f"{torch.__version__}, {built_for}")
    if not torch.cuda.is_available():
        yield note("gpu", "none that torch can use", "ops run their CPU reference")
        return
    for index in range(torch.cuda.device_count()):
        yield _gpu(index, torch.cuda.get_device_properties(index))


def _gpu(index: int, properties: object) -> Finding:
    arch = _arch(properties)
    capability = (properties.major, properties.minor)  # type: ignore[attr-defined]
    found = (
        f"{index}: {properties.name}, capability {capability[0]}.{capability[1]}, "  # type: ignore[attr-defined]
        f"{properties.multi_processor_count} SMs, {properties.total_memory / 2**30:.0f} GiB"  # type: ignore[attr-defined]
    )
    return ok("gpu", found) if arch in set(Arch) else note("gpu", found, without_kernels(arch))


def gpu_archs() -> list[str]:
    """The architectures of the GPUs that torch sees, as Arch spells one, each once; empty without torch or a GPU."""
    try:
        import torch
    except ImportError:
        return []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return list(dict.fromkeys(_arch(torch.cuda.get_device_properties(index)) for index in range(count)))


def _arch(properties: object) -> str:
    return arch_of((properties.major, properties.minor))  # type: ignore[attr-defined]


def examine_driver() -> Iterator[Finding]:
    """The version of NVIDIA's driver, and the CUDA that it runs."""
    cuda = driver_cuda()
    if cuda is None:
        yield note("driver", "none", "kernels can be built here, not run")
        return
    number = _DRIVER_VERSION.read_text().strip() if _DRIVER_VERSION.is_file() else "version unknown"
    yield ok("driver", f"{number}, runs CUDA up to {cuda[0]}.{cuda[1]}")


def examine_toolchain() -> Iterator[Finding]:
    """The toolchain that `gemmill build` would compile with, and the memory that it may take."""
    try:
        tools = find_toolchain()
    except BuildError as error:
        yield note("toolchain", "not complete: nothing can be built here", str(error))
        return
    yield ok("toolchain", f"nvcc {tools.nvcc_version} from {tools.found_by} ({tools.home})")
    yield ok("cutlass", f"{tools.cutlass_version} ({tools.cutlass_include})")
    try:
        dsl = find_dsl(tools.cuda_major)
        yield ok("cute dsl", f"{dsl.version} ({dsl.runtime.parent.parent.parent})")
    except BuildError as error:
        yield note("cute dsl", "not usable: builds have CUTLASS's variants only", str(error))
    yield ok("host compiler", f"{tools.gxx_version} ({tools.gxx})")
    try:
        jobs = BuildOptions().job_count
        yield ok("memory", f"{free_memory() / 2**30:.1f} GiB free: a build runs {jobs} of nvcc at a time")
    except BuildError as error:
        yield problem("memory", str(error), "unset GEMMILL_JOBS, or set it to a number")
