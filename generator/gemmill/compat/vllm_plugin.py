"""vLLM's plugin: the entry point `gemmill` of `vllm.general_plugins`, which vLLM calls in each of its processes.

It puts gemmill's linear kernels before vLLM's own, so that they are asked first: those for FP8 per tensor, token and channel,
FP8 in blocks, INT8, and 4-bit weights. GEMMILL_VLLM=0 leaves vLLM as it is. Nothing is loaded and no GPU is touched before a layer asks.
"""

from importlib import import_module
from typing import Any

from gemmill import settings
from gemmill.compat.linear import guarded

_LINEAR = "vllm.model_executor.kernels.linear"
_LISTS = {
    "GemmillFP8Linear": "_POSSIBLE_FP8_KERNELS",
    "GemmillBlockFP8Linear": "_POSSIBLE_FP8_BLOCK_KERNELS",
    "GemmillInt8Linear": "_POSSIBLE_INT8_KERNELS",
    "GemmillNvFp4Linear": "_POSSIBLE_NVFP4_KERNELS",
    "GemmillMxFp4Linear": "_POSSIBLE_MXFP4_KERNELS",
}
"""vLLM's list that each class is put into."""


def register() -> None:
    """Put the kernels first; a second call changes nothing. Raises nothing: vLLM goes on without them."""
    if settings.serves("vLLM"):
        guarded("vLLM", _register)


def _register() -> None:
    linear = import_module(_LINEAR)
    cuda = import_module("vllm.platforms").PlatformEnum.CUDA
    ours = import_module("gemmill.compat.vllm_kernels")
    lists = {name: getattr(linear, attribute)[cuda] for name, attribute in _LISTS.items()}
    for name, kernels in lists.items():
        _check_alone(name, kernels, getattr(ours, name))
    for name, kernels in lists.items():
        if getattr(ours, name) not in kernels:
            kernels.insert(0, getattr(ours, name))


def _check_alone(name: str, kernels: list[Any], own: type) -> None:
    """Raises RuntimeError where another installation of gemmill has registered its own."""
    others = [kernel for kernel in kernels if kernel.__name__ == name and kernel is not own]
    if others:
        raise RuntimeError(
            f"another gemmill has registered its kernels already, from {others[0].__module__}: uninstall one of the two"
        )
