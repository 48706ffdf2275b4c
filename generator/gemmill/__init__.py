"""gemmill: a generator of quantised GEMM kernels for NVIDIA GPUs.

Importing it defines the ops under `torch.ops.gemmill`; the first call on a GPU loads the newest build.
"""

import sys
from pathlib import Path
from typing import Any

from gemmill.version import __version__

_RUNTIME = (
    "active",
    "assume_constant_weights",
    "cutlass_scaled_mm",
    "cutlass_scaled_mm_azp",
    "explain",
    "load",
    "supports",
    "use_variant",
    "variants",
)
__all__ = ["__version__", *_RUNTIME]


def __getattr__(name: str) -> Any:
    if name in _RUNTIME:
        from gemmill.runtime import ops

        return getattr(ops, name)
    raise AttributeError(f"module 'gemmill' has no attribute {name!r}")


def _runs_own_command() -> bool:
    """Whether this process is the `gemmill` command or one of its workers, which import torch only where they need it."""
    return Path(sys.argv[0] if sys.argv else "").name in ("gemmill", "-m")


if not _runs_own_command():
    from gemmill.runtime import ops as _ops  # noqa: F401  (defines torch.ops.gemmill)
