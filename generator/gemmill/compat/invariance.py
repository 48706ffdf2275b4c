"""Engines' own settings of batch invariance, which turn on gemmill's contract in the whole process."""

import contextlib
import sys
from importlib import import_module

from gemmill.manifest import ManifestError
from gemmill.runtime import holding

VLLM, SGLANG = "VLLM_BATCH_INVARIANT", "--enable-deterministic-inference"

_ARGUMENTS = (
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
)
"""Where releases of SGLang keep the arguments that a server was started with."""


def vllm_asks() -> bool:
    """Whether vLLM's VLLM_BATCH_INVARIANT is set."""
    return bool(import_module("vllm.envs").VLLM_BATCH_INVARIANT)


def sglang_asks() -> bool:
    """Whether SGLang was started with --enable-deterministic-inference; not before it has read its arguments."""
    for name, function in _ARGUMENTS:
        arguments = None
        with contextlib.suppress(Exception):  # of another release, or not read yet
            arguments = getattr(sys.modules[name], function)()
        if arguments is not None:
            return bool(getattr(arguments, "enable_deterministic_inference", False))
    return False


def refusal(asked: bool, by: str) -> str | None:
    """Request the contract in all threads where an engine does; returns why that cannot be, in one sentence, or None.

    Raises nothing.
    """
    if not asked or holding.holds_everywhere():
        return None
    try:
        holding.set_batch_invariant()
    except ManifestError as error:
        return f"{by} is set, and {error}"
    return None


def of_vllm() -> str | None:
    """As `refusal`, of vLLM."""
    return refusal(vllm_asks(), VLLM)


def of_sglang() -> str | None:
    """As `refusal`, of SGLang."""
    return refusal(sglang_asks(), SGLANG)
