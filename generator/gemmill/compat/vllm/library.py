"""The ops of vLLM's own library behind the names that gemmill gives out: they get the calls that gemmill's ops refuse.

It keeps each kernel of vLLM's before its replacement. A library loaded later has its own.
"""

import re
from collections.abc import Callable
from typing import Any

import torch

from gemmill.runtime import handing
from gemmill.runtime.schemas import OpSchema

VLLM = "_C"
NAMESPACE = "gemmill_vllm"
_KEYS = ("CPU", "CUDA")
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_kept: dict[tuple[str, str], Any] = {}


def keep(name: str, key: str) -> None:
    """Keep the kernel that vLLM's op of this name has for a dispatch key, before another takes its place."""
    if key in _KEYS and torch._C._dispatch_has_kernel_for_dispatch_key(f"{VLLM}::{name}", key):
        _kept[name, key] = torch.library.get_kernel(f"{VLLM}::{name}", key)


def hand_on(op: OpSchema, name: str) -> None:
    """Have vLLM's op of this name take the calls that gemmill's refuses, if there is one. gemmill's returns nothing."""
    handed = f"{name}_of_library"
    arguments = re.sub(r"=[^,)]+", "", op.schema.removeprefix(op.name)).removesuffix("()")
    _library.define(f"{handed}{arguments}bool")
    for key in _KEYS:
        _library.impl(handed, _of_library(name, key), key, with_keyset=True)
    to = handing.Handed(to=f"{NAMESPACE}::{handed}", is_there=lambda: _op_of_library(name) is not None)
    handing.hand_on(op.name, to)


def _op_of_library(name: str) -> Any:
    op, _ = torch._C._jit_get_operation(f"{VLLM}::{name}")
    return op


def _of_library(name: str, key: str) -> Callable[..., bool]:
    """The answer for a dispatch key: whether the library has such an op, which then has done the work."""

    def run(keys: Any, *given: Any) -> bool:
        if kept := _kept.get((name, key)):
            kept.call_boxed(keys, *given)
            return True
        if op := _op_of_library(name):
            op(*given)
        return op is not None

    return run
