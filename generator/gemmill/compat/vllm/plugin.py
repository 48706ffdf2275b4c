"""vLLM's plugin: the entry point `gemmill` of `vllm.general_plugins`, which vLLM calls in each of its processes.

It puts gemmill's linear kernels before vLLM's own in vLLM's lists: those for FP8 per tensor, token and channel, FP8 in
blocks, INT8, and 4-bit weights. It stands before the grouped GEMMs of vLLM's FP8 experts too: CUTLASS's, and those in
blocks, DeepGEMM's. Classes of gemmill's stand before Triton's of FP8 experts, and before vLLM's backend of attention
over TurboQuant caches, and MLA_GEMMILL is a backend of its own, over compressed latents. gemmill stands before Marlin's kernels of 4-bit experts, and before the functions that pack
their weights; GEMMILL_FP4_EXPERTS says which it takes. It wraps the gates and routers of experts, whatever their weights are.
GEMMILL_VLLM=0 leaves vLLM as it is. The plugin touches no GPU, and reads nothing before vLLM has a configuration with quantised
weights, and loads nothing before a worker with them starts, or one calls a gate.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from gemmill import settings
from gemmill.compat import invariance
from gemmill.compat.linear import Linear, called, guarded
from gemmill.compat.vllm import ahead, blocks, fp4_experts, fused_experts, fusion, latent_cache, quant, routing
from gemmill.compat.vllm.moe_mm import MOE_MM, cutlass_moe_mm
from gemmill.runtime import notices, served

_LINEAR, _OPS = "vllm.model_executor.kernels.linear", "vllm._custom_ops"
_BACKENDS, _BACKEND = "vllm.v1.attention.backends.registry", "TURBOQUANT"
_OWN_BACKEND = "gemmill.compat.vllm.attention.GemmillTurboQuantBackend"
_LOADING, _PROCESSES = "vllm.model_executor.model_loader.utils", "process_weights_after_loading"
_LISTS = {
    "GemmillFP8Linear": "_POSSIBLE_FP8_KERNELS",
    "GemmillBlockFP8Linear": "_POSSIBLE_FP8_BLOCK_KERNELS",
    "GemmillFineBlockFP8Linear": "_POSSIBLE_FP8_BLOCK_KERNELS",
    "GemmillInt8Linear": "_POSSIBLE_INT8_KERNELS",
    "GemmillNvFp4Linear": "_POSSIBLE_NVFP4_KERNELS",
    "GemmillMxFp4Linear": "_POSSIBLE_MXFP4_KERNELS",
}
"""vLLM's list for each class."""
_CHOOSES_NVFP4, _BACKEND_OF, _NVFP4_WEIGHTS = "init_nvfp4_linear_kernel", "_get_linear_backend", "nvfp4_w4a16"
"""vLLM's choice of a kernel for nvfp4 layers, its reading of `--linear-backend`, and the kind of layers with quantised
weights and plain activations.
"""


def register() -> None:
    """Put the kernels first; a second call changes nothing. Raises nothing: vLLM goes on without them."""
    if settings.serves("vLLM"):
        notices.show_in("vllm")
        guarded("vLLM", _register)


def _register() -> None:
    linear = import_module(_LINEAR)
    cuda = import_module("vllm.platforms").PlatformEnum.CUDA
    ours = import_module("gemmill.compat.vllm.kernels")
    lists = {name: getattr(linear, attribute)[cuda] for name, attribute in _LISTS.items()}
    for name, kernels in lists.items():
        _check_alone(name, kernels, getattr(ours, name))
    experts, deep_gemm = getattr(import_module(_OPS), MOE_MM), import_module(blocks.MODULE)
    backends = import_module(_BACKENDS)
    backend = getattr(backends.AttentionBackendEnum, _BACKEND)
    blocks.put_before(deep_gemm)
    for name, kernels in lists.items():
        if getattr(ours, name) not in kernels:
            kernels.insert(0, getattr(ours, name))
    if not hasattr(experts, "__wrapped__"):
        setattr(import_module(_OPS), MOE_MM, _before(experts))
    if not hasattr(getattr(linear, _CHOOSES_NVFP4), "__wrapped__"):
        blocks.replace(linear, _CHOOSES_NVFP4, _before_marlin(linear, ours.GemmillNvFp4Linear))
    if not backend.is_overridden():  # by another plugin
        backends.register_backend(backend, _OWN_BACKEND)
    guarded("vLLM's start of workers", ahead.put_before)
    guarded("vLLM for caches of latents", latent_cache.put_before)
    guarded("vLLM's log of layers", _tell_after_loading)
    guarded("vLLM's compiled graphs", fusion.put_before)
    guarded("vLLM for experts of 4 bits", fp4_experts.put_before)
    guarded("vLLM for experts in one call", fused_experts.put_before)
    guarded("vLLM for routers of experts", routing.put_before)


def _before_marlin(linear: ModuleType, own: Any) -> Callable[..., Any]:
    """vLLM's choice of nvfp4 kernels. It names Marlin's for layers with plain activations, without asking its list."""
    of_vllm = getattr(linear, _CHOOSES_NVFP4)

    @wraps(of_vllm)
    def choose(use_a16: bool = False) -> Any:
        disabled = import_module("vllm.envs").VLLM_DISABLED_KERNELS
        if (
            not use_a16
            or own.__name__ in disabled
            or getattr(linear, _BACKEND_OF)(quantization=_NVFP4_WEIGHTS) != "auto"
        ):
            return of_vllm(use_a16)
        config = import_module(f"{_LINEAR}.nvfp4.base").NvFp4LinearLayerConfig()
        return own(config) if own.is_supported()[0] and own.can_implement(config)[0] else of_vllm(use_a16)

    return choose


def _before(of_vllm: Callable[..., None]) -> Callable[..., None]:
    """vLLM's grouped GEMM of FP8 experts, of which gemmill takes the calls that its build has variants for."""

    @wraps(of_vllm)
    def moe_mm(out_tensors: Any, a_tensors: Any, b_tensors: Any, *more: Any, **named: Any) -> None:
        codes, out_dtype, weights, k = a_tensors.dtype, out_tensors.dtype, b_tensors.shape, a_tensors.shape[1]

        def layer() -> Linear | None:
            if (why := invariance.of_vllm()) is not None:
                served.left(f"layer of {weights[0]} experts of FP8", why)
                return None
            return Linear(n=out_tensors.shape[1], k=k, codes=codes, out_dtype=out_dtype, experts=weights[0])

        return called(
            (MOE_MM, weights, k, codes, out_dtype),
            layer,
            MOE_MM,
            lambda: cutlass_moe_mm(out_tensors, a_tensors, b_tensors, *more, **named),
            lambda: of_vllm(out_tensors, a_tensors, b_tensors, *more, **named),
        )

    return moe_mm


def _tell_after_loading() -> None:
    """Log the kernel of each layer when vLLM has processed the weights of all; then replace ops that quantise, if the
    settings ask for it.
    """
    module = import_module(_LOADING)
    of_vllm = getattr(module, _PROCESSES)

    @wraps(of_vllm)
    def process(*given: Any, **named: Any) -> Any:
        result = of_vllm(*given, **named)
        guarded("vLLM's quantisation", quant.put_before)
        served.tell()
        return result

    if not hasattr(of_vllm, "__wrapped__"):
        blocks.replace(module, _PROCESSES, process)


def _check_alone(name: str, kernels: list[Any], own: type) -> None:
    """Refuse to be the second: raises RuntimeError where another installation of gemmill has registered its own."""
    others = [kernel for kernel in kernels if kernel.__name__ == name and kernel is not own]
    if others:
        raise RuntimeError(
            f"another gemmill has registered its kernels already, from {others[0].__module__}: uninstall one of the two"
        )
