"""Loads the build of a worker with quantised weights while vLLM sets up the GPU, before the first layer asks for it.

Loading takes most of a second of one core. Meanwhile vLLM's thread waits for CUDA's and NCCL's setup without Python's lock.
"""

import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from gemmill.compat.vllm import blocks
from gemmill.runtime import ops

_MODULE, _SETS_UP, _CONFIG = "vllm.distributed.parallel_state", "init_distributed_environment", "vllm.config"
"""vLLM's setup of a worker, which follows the choice of its GPU."""
THREAD = "gemmill-load"


def put_before() -> None:
    """Wrap the setup of vLLM's workers, there and wherever vLLM has imported it already; a second call changes nothing."""
    of_vllm = getattr(module := import_module(_MODULE), _SETS_UP)
    if not hasattr(of_vllm, "__wrapped__"):
        blocks.replace(module, _SETS_UP, _before(of_vllm))


def _before(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(of_vllm)
    def set_up(*given: Any, **named: Any) -> Any:
        config = import_module(_CONFIG).get_current_vllm_config_or_none()
        if getattr(config, "quant_config", None) is not None and torch.cuda.is_initialized():
            threading.Thread(target=_load, args=(torch.cuda.current_device(),), name=THREAD, daemon=True).start()
        return of_vllm(*given, **named)

    return set_up


def _load(device: int) -> None:
    """Load the build for a GPU of this process. Where it fails, the layer that asks first logs why."""
    try:
        with torch.cuda.device(device):
            ops.active()
    except Exception:
        return
