"""Builds without an extension, for every test here."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from builds import shaped_call, smoke_build, smoke_configs, table_of
from engines import vllm_modules
from gemmill.compat import linear
from gemmill.runtime import holding, ops

__all__ = ["shaped_call", "smoke_build", "smoke_configs", "table_of"]


@pytest.fixture(autouse=True)
def _choosing_freely() -> Iterator[None]:
    """No test leaves batch invariance asked for."""
    yield
    holding.hold_everywhere(False)
    holding.hold_here(None)


@pytest.fixture
def modules_of_vllm(monkeypatch) -> Iterator[dict[str, ModuleType]]:
    """Stand-ins of the modules of a newly started vLLM, by name."""
    modules = vllm_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gemmill.compat.vllm.kernels", raising=False)
    monkeypatch.setattr(linear, "_complained", set())
    monkeypatch.delenv("GEMMILL_VLLM", raising=False)
    yield modules
    sys.modules.pop("gemmill.compat.vllm.kernels", None)


@pytest.fixture
def vllm(modules_of_vllm) -> SimpleNamespace:
    """The names of vLLM that a plugin meets as it is called."""
    linear.forget()
    kernels_of_vllm = modules_of_vllm["vllm.model_executor.kernels.linear"]
    return SimpleNamespace(
        cuda=modules_of_vllm["vllm.platforms"].PlatformEnum.CUDA,
        envs=modules_of_vllm["vllm.envs"],
        **vars(kernels_of_vllm),
    )


@pytest.fixture
def served(smoke_build, monkeypatch):
    """A loaded build of the smoke selection."""
    monkeypatch.setattr(ops, "_active", smoke_build)
    return smoke_build
