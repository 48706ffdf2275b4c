"""vLLM's workers load gemmill's build while they set up their GPU (compat/vllm/ahead.py)."""

import contextlib
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from engines import VLLM
from gemmill.compat.vllm import ahead
from gemmill.manifest import ManifestError
from gemmill.runtime import ops

GPU = 3


@pytest.fixture
def worker(modules_of_vllm, monkeypatch) -> SimpleNamespace:
    """A worker of vLLM's on GPU 3, the threads in which gemmill was loaded, and the GPUs that they chose."""
    found = SimpleNamespace(loads=[], gpus=[], frozen=[], config=SimpleNamespace(quant_config=object()), error=None)

    def active() -> None:
        found.loads.append(threading.current_thread().name)
        if found.error:
            raise found.error

    def chosen(gpu: int) -> contextlib.nullcontext:
        found.gpus.append(gpu)
        return contextlib.nullcontext()

    def set_up(**named: object) -> object:
        ahead.put_before()  # a second time
        result = modules_of_vllm["vllm.distributed"].init_distributed_environment(2, rank=1, **named)
        for thread in threading.enumerate():
            if thread.name == ahead.THREAD:
                thread.join()
        return result

    monkeypatch.setattr(modules_of_vllm["vllm.config"], "get_current_vllm_config_or_none", lambda: found.config)
    monkeypatch.setattr(ops, "active", active)
    monkeypatch.setattr(ahead.gc, "freeze", lambda: found.frozen.append(len(found.loads)))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: GPU)
    monkeypatch.setattr(torch.cuda, "device", chosen)
    ahead.put_before()
    found.set_up = set_up
    return found


def test_a_worker_with_quantised_weights_loads_the_build_in_a_thread(worker) -> None:
    assert worker.set_up(local_rank=1) == "vLLM's"
    assert (worker.loads, worker.gpus, worker.frozen) == ([ahead.THREAD], [GPU], [1])
    assert "init_distributed_environment" in VLLM["modules"]["vllm.distributed.parallel_state"]
    assert "get_current_vllm_config_or_none" in VLLM["modules"]["vllm.config.vllm"]


@pytest.mark.parametrize("config", [None, SimpleNamespace(quant_config=None)], ids=["no config", "plain weights"])
def test_a_worker_without_them_loads_nothing(worker, config) -> None:
    worker.config = config
    assert worker.set_up() == "vLLM's"
    assert worker.loads == []


def test_a_process_that_has_touched_no_gpu_loads_nothing(worker, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert worker.set_up() == "vLLM's"
    assert worker.loads == []


def test_a_build_that_cannot_be_loaded_is_left_to_the_layer_that_asks(worker, monkeypatch, capsys) -> None:
    worker.error = ManifestError("no build")
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    assert worker.set_up() == "vLLM's"
    assert worker.loads == [ahead.THREAD] and not raised


@pytest.mark.parametrize(("quantised", "reads"), [(object(), [ahead.THREAD]), (None, [])])
def test_the_build_is_read_when_vllm_has_made_a_configuration(
    vllm, served, modules_of_vllm, monkeypatch, quantised, reads
) -> None:
    from gemmill.compat.vllm import plugin

    found = []
    monkeypatch.setattr(ops, "read_ahead", lambda: found.append(threading.current_thread().name))
    plugin.register()
    custom = SimpleNamespace(custom_ops=[])
    config = SimpleNamespace(quant_config=quantised, additional_config={}, compilation_config=custom)
    modules_of_vllm["vllm.platforms"].current_platform.apply_config_platform_defaults(config)
    for thread in threading.enumerate():
        if thread.name == ahead.THREAD:
            thread.join()
    assert found == reads


def test_the_plugin_wraps_every_name_of_the_setup(vllm, served, modules_of_vllm, monkeypatch) -> None:
    from gemmill.compat.vllm import plugin

    later = sys.modules["vllm.distributed"]
    plugin.register()
    for module in (later, modules_of_vllm["vllm.distributed.parallel_state"]):
        assert module.init_distributed_environment.__wrapped__(2) == "vLLM's"
