"""The only reader of environment variables. Each use reads its variable again, so that a change takes effect at once."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gemmill import locations

_COMPILERS_OWN = re.compile(
    r"NVCC_.*|\w+_FLAGS|CICC_PATH|NVVMIR_LIBRARY_DIR|(SYSTEM_)?INCLUDES|LIBRARIES"  # nvcc, and the variables that its nvcc.profile extends
    r"|CPATH|\w+_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|GCC_.*|SOURCE_DATE_EPOCH|(SUNPRO_)?DEPENDENCIES(_OUTPUT)?"  # gcc
    r"|LD_RUN_PATH|LDEMULATION|GNUTARGET"  # ld, objcopy
    r"|CUTE_.*|PYTHONOPTIMIZE"  # the CuTe DSL, whose kernels' assertions are Python's
    r"|LANG|LANGUAGE|LC_.*"  # errors are read, and kept in manifests
)
"""Variables that change the output of compilers and linkers for the same command, or the words of their errors."""


def home() -> Path:
    """GEMMILL_HOME: the folder of builds and caches; else .gemmill in the checkout that runs, as make has it; else gemmill in
    $XDG_CACHE_HOME, else in ~/.cache."""
    if named := _path("GEMMILL_HOME"):
        return named
    if folder := locations.checkout():
        return folder / ".gemmill"
    return (_path("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemmill"


def shared_home() -> bool:
    """GEMMILL_SHARED_HOME: 1 trusts builds and caches that other users own or can write, as a team's on a file server."""
    return os.environ.get("GEMMILL_SHARED_HOME") == "1"


def build() -> str | None:
    """GEMMILL_BUILD: the id or path of the build that the runtime loads; None for the current one."""
    return os.environ.get("GEMMILL_BUILD") or None


def cuda_home() -> Path | None:
    """GEMMILL_CUDA_HOME: the CUDA toolkit to use before any other."""
    return _path("GEMMILL_CUDA_HOME")


def system_cuda_home() -> Path | None:
    """CUDA_HOME: the machine's toolkit, used when neither GEMMILL_CUDA_HOME nor the PyPI wheels give one."""
    return _path("CUDA_HOME")


def cutlass_home() -> Path | None:
    """GEMMILL_CUTLASS_HOME: a CUTLASS checkout to use instead of the nvidia-cutlass package."""
    return _path("GEMMILL_CUTLASS_HOME")


def jobs() -> int | None:
    """GEMMILL_JOBS: compiler processes at a time; None lets cores and memory decide. Raises ValueError."""
    return _positive("GEMMILL_JOBS")


def compiler_launcher() -> str | None:
    """GEMMILL_COMPILER_LAUNCHER: the program to put before each compiler call; `none` for nothing; None to look for
    ccache or sccache.
    """
    return os.environ.get("GEMMILL_COMPILER_LAUNCHER") or None


def programmatic_launch() -> bool:
    """GEMMILL_PROGRAMMATIC_LAUNCH: 0 makes every kernel wait for its predecessor's end before its launch."""
    return os.environ.get("GEMMILL_PROGRAMMATIC_LAUNCH") != "0"


def endless_waits() -> bool:
    """GEMMILL_ENDLESS_WAITS: 1 lets a kernel wait for its other CTAs for ever, instead of 20 s, as debuggers and sanitizers
    need it."""
    return os.environ.get("GEMMILL_ENDLESS_WAITS") == "1"


def constant_weights() -> bool:
    """GEMMILL_CONSTANT_WEIGHTS: 1 makes the promise of `gemmill.assume_constant_weights`."""
    return os.environ.get("GEMMILL_CONSTANT_WEIGHTS") == "1"


def batch_invariant() -> bool:
    """GEMMILL_BATCH_INVARIANT: 1 asks for batch invariance, as `gemmill.batch_invariant` does, in all threads."""
    return os.environ.get("GEMMILL_BATCH_INVARIANT") == "1"


def tables() -> list[Path]:
    """GEMMILL_TABLES: tuned tables to prefer, files or folders of them, between colons."""
    return [
        Path(text).expanduser().absolute() for text in os.environ.get("GEMMILL_TABLES", "").split(os.pathsep) if text
    ]


def record_misses() -> Path | None:
    """GEMMILL_RECORD_MISSES: the file for calls whose shape no table has; `gemmill tune --misses` reads it."""
    return _path("GEMMILL_RECORD_MISSES")


def dump() -> Path | None:
    """GEMMILL_DUMP: the folder for calls with their data, which `gemmill export --from` reads."""
    return _path("GEMMILL_DUMP")


def dump_limits() -> tuple[int, int]:
    """GEMMILL_DUMP_CALLS and GEMMILL_DUMP_BYTES: the most calls that a process saves (64), and their bytes (2^30). Raises ValueError."""
    return _positive("GEMMILL_DUMP_CALLS") or 64, _positive("GEMMILL_DUMP_BYTES") or 1 << 30


def logs_choices() -> bool:
    """GEMMILL_LOG: `choices` logs which variant each shape gets. Raises ValueError for another word."""
    text = os.environ.get("GEMMILL_LOG", "")
    if text not in ("", "choices"):
        raise ValueError(
            f"GEMMILL_LOG is {text!r}: it can be `choices`, which logs the variant of each shape, or unset"
        )
    return text == "choices"


def ranges() -> bool:
    """GEMMILL_NVTX: 1 puts an NVTX range around each call on a GPU, with its op, sizes and variant."""
    return os.environ.get("GEMMILL_NVTX") == "1"


def serves(engine: str) -> bool:
    """GEMMILL_VLLM and GEMMILL_SGLANG: 0 leaves an engine's linear layers to its own kernels, with the plugin
    installed.
    """
    return os.environ.get({"vLLM": "GEMMILL_VLLM", "SGLang": "GEMMILL_SGLANG"}[engine]) != "0"


def times_layers() -> bool:
    """GEMMILL_TIME_LAYERS: 0 gives layers to gemmill that its build has variants for, without timing the engine's
    kernel, and leaves weights packed that it might unpack for calls of many rows.
    """
    return os.environ.get("GEMMILL_TIME_LAYERS") != "0"


def quantises(engine: str) -> bool:
    """GEMMILL_VLLM_OPS: 1 lets gemmill's kernels quantise in calls of vLLM's ops, of those measured to be faster."""
    return os.environ.get({"vLLM": "GEMMILL_VLLM_OPS"}[engine]) == "1"


def rewrites(engine: str) -> bool:
    """GEMMILL_VLLM_OPS: 0 leaves compiled graphs of an engine's without gemmill's kernels in the place of its own quantisation."""
    return os.environ.get({"vLLM": "GEMMILL_VLLM_OPS"}[engine]) != "0"


def takes_fp4_experts(*, measured: bool = False) -> bool:
    """GEMMILL_FP4_EXPERTS: experts of 4-bit weights come to gemmill where an engine has Marlin's kernels for them: with 1 all, with 0
    none, else those whose kernels were measured to be faster than Marlin's. 2:4 is as 1."""
    given = os.environ.get("GEMMILL_FP4_EXPERTS")
    return given in ("1", "2:4") or (measured and given != "0")


def prunes_fp4_experts() -> bool:
    """GEMMILL_FP4_EXPERTS: 2:4 prunes nvfp4 experts to 2:4 as they load, where a build has kernels for them."""
    return os.environ.get("GEMMILL_FP4_EXPERTS") == "2:4"


def visible_devices() -> list[str]:
    """CUDA_VISIBLE_DEVICES: the GPUs that this process may use, as CUDA names them; empty for all."""
    return [text.strip() for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if text.strip()]


def child_environment(*, search: Sequence[Path] = (), python_path: Path | None = None) -> dict[str, str]:
    """This process's environment for a program it starts, with folders put before PATH and PYTHONPATH."""
    result = dict(os.environ)
    result["PATH"] = os.pathsep.join([*map(str, search), result.get("PATH", os.defpath)])
    if python_path is not None:
        result["PYTHONPATH"] = os.pathsep.join([str(python_path), *filter(None, [result.get("PYTHONPATH")])])
    return result


def compiler_environment(*, search: Sequence[Path] = (), python_path: Path | None = None) -> dict[str, str]:
    """The same for a compiler or linker, without the variables that would change its output. The cache's keys and the
    build id cover commands and files, so the same of these must give the same object."""
    result = child_environment(search=search, python_path=python_path)
    return {name: value for name, value in result.items() if not _COMPILERS_OWN.fullmatch(name)} | {"LC_ALL": "C"}


def dsl_environment(arch: str, *, search: Sequence[Path], python_path: Path) -> dict[str, str]:
    """The same for a process that compiles with the CuTe DSL for `arch`, such as `sm_90a`."""
    result = compiler_environment(search=search, python_path=python_path)
    return result | {"CUTE_DSL_ARCH": arch, "CUTE_DSL_DISABLE_FILE_CACHING": "1"}


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text).expanduser().absolute() if text else None


def _positive(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}: it must be a whole number of at least 1")
    return int(text)
