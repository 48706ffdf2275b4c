"""Quantised GEMM and quantisation kernels for NVIDIA GPUs, as torch ops.

Importing it defines the ops under `torch.ops.gemmill`; the first call on a GPU loads a build. On CPU tensors the same
functions run the reference. The functions below allocate their results; the ops of the same names write into tensors of
the caller. `explain` says which kernel a call gets and why, `use_variant` pins one.
"""

import importlib.util
import sys
from pathlib import Path

from gemmill.version import __version__ as __version__


def _runs_own_command() -> bool:
    """Whether this process is the `gemmill` command or one of its workers, which import torch only where they need it."""
    program = sys.argv[0] if sys.argv else ""
    if program != "-m":
        return Path(program).name == "gemmill"
    # `python -m MODULE` imports packages to find MODULE. Only the command line says until then which one it is.
    word = sys.orig_argv[-len(sys.argv)]
    module = word.partition("m")[2] if word.startswith("-") else word  # as -mMODULE, -ImMODULE
    return module.partition(".")[0] == "gemmill"


if not _runs_own_command():
    from gemmill.public import *  # noqa: F403
    from gemmill.public import __all__ as __all__

    def __dir__() -> list[str]:
        return list(__all__)
else:

    def __getattr__(name: str) -> object:
        if name == "__all__" or importlib.util.find_spec(f"gemmill.{name}") is None:  # a module is about to be imported
            public = importlib.import_module("gemmill.public")
            if name == "__all__" or name in public.__all__:
                return getattr(public, name)
        raise AttributeError(f"module 'gemmill' has no attribute {name!r}")
