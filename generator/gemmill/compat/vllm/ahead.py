"""Loads the build of an engine with quantised weights before its first layer asks for it, which would wait for most of a second.

When vLLM has made its configuration, a thread reads the build, so that workers forked later have it; when a worker sets up its GPU,
a thread loads it. vLLM's own thread waits in that time for CUDA and NCCL without Python's lock. vLLM collects garbage twice while it
loads a model, for 0.4 s each with a build's objects among the others (H200, 2026-11-28), so those alive are set aside, as vLLM
does itself when the worker has started.
"""

import gc
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


def read(config: Any) -> None:
    """Read the build for a configuration of vLLM's with quantised weights, in a thread that touches no GPU. A fork waits for it."""
    if _is_quantised(config):
        _started(ops.read_ahead)


def _before(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(of_vllm)
    def set_up(*given: Any, **named: Any) -> Any:
        config = import_module(_CONFIG).get_current_vllm_config_or_none()
        if _is_quantised(config) and torch.cuda.is_initialized():
            _started(_load, torch.cuda.current_device())
        return of_vllm(*given, **named)

    return set_up


def _is_quantised(config: Any) -> bool:
    return getattr(config, "quant_config", None) is not None


def _started(function: Callable[..., Any], *given: Any) -> None:
    """Call a function in a thread. Where it fails, the layer that asks first logs why."""

    def run() -> None:
        try:
            function(*given)
        except Exception:
            return

    threading.Thread(target=run, name=THREAD, daemon=True).start()


def _load(device: int) -> None:
    with torch.cuda.device(device):
        ops.active()
    gc.freeze()
